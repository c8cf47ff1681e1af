//! TLS around a stream: the client checks the server's certificate and refuses versions below TLS
//! 1.2.
//!
//! rustls allocates a buffer for each record that it makes (16 KiB at most) and for the decrypted
//! bytes that were not read yet. Both are bounded by [`BUFFER`], because the stream takes no more
//! bytes before the bytes that it holds were passed on.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use uswap_core::util::growth::{Growth, during};
use uswap_sys::io::net::{SocketReady, wait_ready};

use super::stream::{NbdStream, is_later, left};
use super::uri::{NbdPlace, NbdUri};

/// Maximum number of bytes that wait inside the stream for the socket.
const BUFFER: usize = 128 << 10;
/// Where systems keep their trusted certificate authorities.
const BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// The trusted authorities, the client's own certificate, and the expected name of the server.
pub struct TlsClient {
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
}

impl TlsClient {
    /// Reads the certificates that a URI names: `ca-cert.pem` of its folder, or the system's
    /// authorities.
    ///
    /// # Errors
    /// A message for the user: which file cannot be read, or is no certificate.
    pub fn new(uri: &NbdUri) -> Result<Self, String> {
        let host = match (&uri.tls_hostname, &uri.place) {
            (Some(name), _) => name.as_str(),
            (None, NbdPlace::Tcp(host, _)) => host.as_str(),
            (None, NbdPlace::Unix(_)) => "localhost",
        };
        let server = ServerName::try_from(host.to_owned());
        let server = server.map_err(|_| format!("{host:?} is no name that a certificate can hold"))?;
        let roots = authorities(uri.certificates.as_deref())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| error.to_string())?.with_root_certificates(roots);
        let config = match identity(uri.certificates.as_deref())? {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                builder.with_client_auth_cert(chain, key).map_err(|error| format!("client-key.pem: {error}"))?
            }
        };
        Ok(Self { config: Arc::new(config), server })
    }

    /// Performs the TLS handshake over a stream, before `deadline`.
    ///
    /// # Errors
    /// An untrusted certificate, or another reason, as a sentence.
    pub fn connect(&self, inner: Box<dyn NbdStream>, deadline: Instant) -> io::Result<TlsStream> {
        let session = ClientConnection::new(self.config.clone(), self.server.clone());
        let mut session = session.map_err(io::Error::other)?;
        session.set_buffer_limit(Some(BUFFER));
        let done = shake_hands(&mut session, &*inner, deadline);
        // Sent also after a failure, so that the server learns the reason.
        let _ = session.wants_write().then(|| session.write_tls(&mut Wire(&*inner)));
        done?;
        Ok(TlsStream { inner, session: Mutex::new(session), buffered: AtomicBool::new(false) })
    }
}

fn shake_hands(session: &mut ClientConnection, inner: &dyn NbdStream, deadline: Instant) -> io::Result<()> {
    while session.is_handshaking() {
        let step = match session.wants_write() {
            true => session.write_tls(&mut Wire(inner)).map(drop),
            false => match session.read_tls(&mut Wire(inner)) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => session.process_new_packets().map(drop).map_err(io::Error::other),
                Err(error) => Err(error),
            },
        };
        match step {
            Err(error) if is_later(&error) => {
                let ask = SocketReady { read: !session.wants_write(), write: session.wants_write() };
                wait_ready(inner.socket(), ask, left(deadline)?)?;
            }
            other => other?,
        }
    }
    Ok(())
}

fn authorities(folder: Option<&Path>) -> Result<RootCertStore, String> {
    let path = match folder {
        Some(folder) => folder.join("ca-cert.pem"),
        None => BUNDLES.iter().map(PathBuf::from).find(|path| path.exists()).ok_or(
            "this system has no list of authorities: name a folder with ca-cert.pem by ?tls-certificates=FOLDER",
        )?,
    };
    let mut roots = RootCertStore::empty();
    // The system's list may contain certificates that rustls does not understand.
    let (added, _) = roots.add_parsable_certificates(certificates(&path)?);
    if added == 0 { Err(format!("{} holds no certificate", path.display())) } else { Ok(roots) }
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The client's certificate and key, if they are in the folder.
fn identity(folder: Option<&Path>) -> Result<Option<Identity>, String> {
    let Some(folder) = folder.filter(|folder| folder.join("client-cert.pem").exists()) else { return Ok(None) };
    let key = folder.join("client-key.pem");
    let read = PrivateKeyDer::from_pem_file(&key).map_err(|error| format!("{}: {error}", key.display()))?;
    Ok(Some((certificates(&folder.join("client-cert.pem"))?, read)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |error| format!("{}: {error}", path.display());
    CertificateDer::pem_file_iter(path).map_err(wrong)?.collect::<Result<_, _>>().map_err(wrong)
}

/// A stream inside TLS. Reader and writer take turns at the session, and no thread waits for the
/// socket while it holds the session.
pub struct TlsStream {
    inner: Box<dyn NbdStream>,
    session: Mutex<ClientConnection>,
    /// Decrypted bytes wait to be read.
    buffered: AtomicBool,
}

/// The stream below, with the interface that rustls needs.
struct Wire<'a>(&'a dyn NbdStream);

impl Read for Wire<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(into)
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(&[IoSlice::new(bytes)])
    }
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write(parts)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TlsStream {
    fn lock(&self) -> MutexGuard<'_, ClientConnection> {
        self.session.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        let mut session = self.lock();
        loop {
            match session.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                Err(error) if is_later(&error) => {}
                Err(error) => return Err(error),
                Ok(count) => {
                    let state = session.process_new_packets().map_err(io::Error::other)?;
                    self.buffered.store(state.plaintext_bytes_to_read() > 0, Relaxed);
                    return Ok(count);
                }
            }
            self.buffered.store(false, Relaxed);
            if session.read_tls(&mut Wire(&*self.inner))? == 0 {
                return Ok(0);
            }
            let taken = session.process_new_packets();
            // TLS may have to answer the server: with a new key, or with the reason for which the
            // session ends.
            self.pass_on_some(&mut session)?;
            taken.map_err(io::Error::other)?;
        }
    }

    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut session = self.lock();
        self.pass_on(&mut session)?;
        let count = session.writer().write_vectored(parts)?;
        self.pass_on_some(&mut session)?;
        Ok(count)
    }

    fn pass_on(&self, session: &mut ClientConnection) -> io::Result<()> {
        while session.wants_write() {
            session.write_tls(&mut Wire(&*self.inner))?;
        }
        Ok(())
    }

    /// As [`pass_on`](Self::pass_on), but bytes that do not fit now are sent later.
    fn pass_on_some(&self, session: &mut ClientConnection) -> io::Result<()> {
        self.pass_on(session).or_else(|error| if is_later(&error) { Ok(()) } else { Err(error) })
    }
}

impl NbdStream for TlsStream {
    fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        during(Growth::Tls, || self.receive(into))
    }

    fn try_write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        during(Growth::Tls, || self.send(parts))
    }

    fn try_flush(&self) -> io::Result<()> {
        during(Growth::Tls, || self.pass_on(&mut self.lock()))
    }

    fn has_buffered(&self) -> bool {
        self.buffered.load(Relaxed)
    }

    fn acknowledge(&self) {
        self.inner.acknowledge();
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.inner.socket()
    }

    fn shut(&self) {
        self.inner.shut();
    }
}
