//! NBD URIs, by the NBD project's `doc/uri.md`: `nbd://HOST[:PORT]/EXPORT`, `nbds://`,
//! `nbd+unix:///EXPORT?socket=PATH`, `nbds+unix://`.

use std::path::PathBuf;
use std::str::FromStr;

/// The default port of NBD.
const PORT: u16 = 10809;
/// Longest name of an export in bytes (the protocol's limit for strings).
const LONGEST_EXPORT: usize = 4096;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdPlace {
    /// Host and port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

/// An export of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdUri {
    /// The URI as the user wrote it.
    pub text: String,
    /// The address.
    pub place: NbdPlace,
    /// The name of the export; empty: the default export.
    pub export: String,
    /// TLS is required.
    pub tls: bool,
    /// A folder with `ca-cert.pem`, and with `client-cert.pem` and `client-key.pem` if the server
    /// asks for a client certificate.
    pub certificates: Option<PathBuf>,
    /// The name that the server's certificate must contain, if it differs from the host's.
    pub tls_hostname: Option<String>,
}

impl FromStr for NbdUri {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or("a URI has :// after its scheme")?;
        let (unix, tls) = match scheme {
            "nbd" => (false, false),
            "nbds" => (false, true),
            "nbd+unix" => (true, false),
            "nbds+unix" => (true, true),
            _ => return Err(format!("unknown scheme {scheme:?}: nbd, nbds, nbd+unix and nbds+unix are known")),
        };
        if rest.contains('#') {
            return Err("a URI of NBD has no #".into());
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decoded(path)?;
        if export.len() > LONGEST_EXPORT {
            return Err(format!("the export's name is longer than {LONGEST_EXPORT} bytes"));
        }
        let mut socket = None;
        let mut uri = Self {
            text: text.into(),
            place: NbdPlace::Unix(PathBuf::new()),
            export,
            tls,
            certificates: None,
            tls_hostname: None,
        };
        for (name, value) in query.split('&').filter(|part| !part.is_empty()).map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (name, decoded(value))
        }) {
            uri.set(name, value?, &mut socket)?;
        }
        uri.place = place(unix, authority, socket)?;
        Ok(uri)
    }
}

impl NbdUri {
    fn set(&mut self, name: &str, value: String, socket: &mut Option<PathBuf>) -> Result<(), String> {
        let path = || match value.starts_with('/') {
            true => Ok(PathBuf::from(&value)),
            false => Err(format!("{name}={value}: a path that begins with / is needed")),
        };
        match name {
            "socket" => *socket = Some(path()?),
            "tls-certificates" if self.tls => self.certificates = Some(path()?),
            "tls-hostname" if self.tls && !value.is_empty() => self.tls_hostname = Some(value),
            "tls-certificates" | "tls-hostname" => return Err(format!("{name} is for nbds:// and nbds+unix://")),
            _ => return Err(format!("unknown {name:?} in the URI (socket, tls-certificates, tls-hostname)")),
        }
        Ok(())
    }
}

fn place(unix: bool, authority: &str, socket: Option<PathBuf>) -> Result<NbdPlace, String> {
    match (unix, socket) {
        (true, Some(socket)) if authority.is_empty() => Ok(NbdPlace::Unix(socket)),
        (true, Some(_)) => Err("a Unix socket has no host: write three slashes, nbd+unix:///EXPORT?socket=PATH".into()),
        (true, None) => Err("the socket is missing: nbd+unix:///EXPORT?socket=PATH".into()),
        (false, Some(_)) => Err("socket= is for nbd+unix:// and nbds+unix://".into()),
        (false, None) => host_and_port(authority),
    }
}

fn host_and_port(authority: &str) -> Result<NbdPlace, String> {
    if authority.contains('@') {
        return Err("a user in the URI is not supported: certificates tell who we are".into());
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("the address in [ ] has no end")?;
            match port {
                "" => (host, None),
                _ => (host, Some(port.strip_prefix(':').ok_or("after [ADDRESS] comes :PORT or nothing")?)),
            }
        }
        None => match authority.split_once(':') {
            Some((_, port)) if port.contains(':') => return Err("an IPv6 address is written in [ ]".into()),
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("the host is missing: nbd://HOST/EXPORT".into());
    }
    let port = match port {
        None | Some("") => PORT,
        Some(port) => match port.parse() {
            Ok(port) if port != 0 => port,
            _ => return Err(format!("{port:?} is no port")),
        },
    };
    Ok(NbdPlace::Tcp(host.into(), port))
}

/// Decodes text in which %XX stands for a byte.
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let hex = |at: usize| after.get(at).and_then(|digit| (*digit as char).to_digit(16));
        match (byte, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            (b'%', ..) => return Err(format!("{text:?}: after % come two hexadecimal digits")),
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err(format!("{text:?} is no text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> NbdUri {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn each_form_is_read() {
        let tcp = |host: &str, port| NbdPlace::Tcp(host.into(), port);
        for (text, place, export) in [
            ("nbd://h/e", tcp("h", 10809), "e"),
            ("nbd://h", tcp("h", 10809), ""),
            ("nbd://h:/a/b", tcp("h", 10809), "a/b"),
            ("nbd://[::1]:7/x%20y", tcp("::1", 7), "x y"),
            ("nbd://10.0.0.1:1//e", tcp("10.0.0.1", 1), "/e"),
            ("nbd+unix:///e?socket=/a%2Cb", NbdPlace::Unix("/a,b".into()), "e"),
            ("nbd+unix://?socket=/s", NbdPlace::Unix("/s".into()), ""),
        ] {
            let uri = read(text);
            assert_eq!((uri.place, uri.export.as_str(), uri.tls), (place, export, false), "{text}");
        }
        let uri = read("nbds://h/?tls-certificates=/c&tls-hostname=other");
        assert_eq!((uri.tls, uri.certificates, uri.tls_hostname), (true, Some("/c".into()), Some("other".into())));
        assert!(read("nbds+unix:///?socket=/s").tls);
    }

    #[test]
    fn nonsense_is_refused_with_a_sentence() {
        for (text, why) in [
            ("h/e", "://"),
            ("http://h/e", "scheme"),
            ("nbd:///e", "host"),
            ("nbd://u@h/e", "user"),
            ("nbd://h:0/e", "port"),
            ("nbd://h:65536/e", "port"),
            ("nbd://h:x/e", "port"),
            ("nbd://::1/e", "[ ]"),
            ("nbd://[::1/e", "no end"),
            ("nbd://[::1]7/e", ":PORT"),
            ("nbd://h/%", "hexadecimal"),
            ("nbd://h/%zz", "hexadecimal"),
            ("nbd://h/%00", "no text"),
            ("nbd://h/e#f", "#"),
            ("nbd://h/e?socket=/s", "nbd+unix"),
            ("nbd://h/e?x=1", "unknown"),
            ("nbd://h/e?tls-certificates=/c", "nbds"),
            ("nbds://h/e?tls-certificates=c", "begins with /"),
            ("nbd+unix:///e", "socket is missing"),
            ("nbd+unix://h/e?socket=/s", "three slashes"),
        ] {
            let error = text.parse::<NbdUri>().expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
