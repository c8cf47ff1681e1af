//! Connecting to a server: its addresses, the socket, and a connection whose handshake is done.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::handshake::{self, Export, HandshakeError};
use super::stream::{NbdStream, connect_tcp, connect_unix};
use super::tls::TlsClient;
use super::uri::{NbdPlace, NbdUri};

/// Why connecting failed.
#[derive(Debug)]
pub enum ConnectError {
    /// The host name has no address.
    Host(String, io::Error),
    /// No server answers at the address.
    Connect(String, io::Error),
    /// The certificates cannot be used.
    Certificates(String),
    /// TLS failed.
    Tls(io::Error),
    /// The handshake with the server failed.
    Handshake(HandshakeError),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host, error) => write!(f, "the host {host:?} is not known: {error}"),
            Self::Connect(place, error) if error.kind() == io::ErrorKind::TimedOut => {
                write!(f, "{place} does not answer in time")
            }
            Self::Connect(place, error) => write!(f, "cannot connect to {place}: {error}"),
            Self::Certificates(why) => write!(f, "certificates: {why}"),
            Self::Tls(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("the server ended the connection during the TLS handshake")
            }
            Self::Tls(error) => write!(f, "TLS: {error}"),
            Self::Handshake(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConnectError {}

impl From<HandshakeError> for ConnectError {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

enum Way {
    Tcp(Vec<SocketAddr>),
    Unix(PathBuf),
}

/// A server whose addresses are known. They are kept, so that a reconnect needs no name service.
pub struct NbdServer {
    uri: NbdUri,
    way: Way,
    tls: Option<TlsClient>,
}

impl NbdServer {
    /// Looks the host up and reads the certificates.
    ///
    /// # Errors
    /// The host is unknown, or the certificates cannot be used.
    pub fn find(uri: &NbdUri) -> Result<Self, ConnectError> {
        let tls = if uri.tls { Some(TlsClient::new(uri).map_err(ConnectError::Certificates)?) } else { None };
        let way = match &uri.place {
            NbdPlace::Unix(path) => Way::Unix(path.clone()),
            NbdPlace::Tcp(host, port) => {
                let unknown = |error| ConnectError::Host(host.clone(), error);
                let found: Vec<_> = (host.as_str(), *port).to_socket_addrs().map_err(unknown)?.collect();
                Way::Tcp(found)
            }
        };
        Ok(Self { uri: uri.clone(), way, tls })
    }

    /// Connects and negotiates the export, all before `deadline`. The connection ends when the
    /// server does not acknowledge bytes for `patience`.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(&self, deadline: Instant, patience: Duration) -> Result<(Box<dyn NbdStream>, Export), ConnectError> {
        let refused = |error| ConnectError::Connect(self.place(), error);
        let mut stream: Box<dyn NbdStream> = match &self.way {
            Way::Tcp(addresses) => Box::new(connect_tcp(addresses, deadline, patience).map_err(refused)?),
            Way::Unix(path) => Box::new(connect_unix(path).map_err(refused)?),
        };
        handshake::greet(&*stream, deadline)?;
        if let Some(tls) = &self.tls {
            handshake::start_tls(&*stream, deadline)?;
            stream = Box::new(tls.connect(stream, deadline).map_err(ConnectError::Tls)?);
        }
        let export = handshake::negotiate(&*stream, &self.uri.export, deadline)?;
        Ok((stream, export))
    }

    fn place(&self) -> String {
        match &self.uri.place {
            NbdPlace::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
            NbdPlace::Tcp(host, port) => format!("{host}:{port}"),
            NbdPlace::Unix(path) => path.display().to_string(),
        }
    }
}
