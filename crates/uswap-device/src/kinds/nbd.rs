//! An export of an NBD server, named by its URI.

use std::time::Duration;

use super::{DeviceKind, KindOption, OpenRequest, PlaceForm, ShortForm};
use crate::device::Device;
use crate::nbd::{MAX_CONNECTIONS, NbdDevice, NbdOptions, NbdUri};

/// Time in which a server must answer before its pages count as lost.
const TIMEOUT: KindOption = KindOption {
    name: "timeout",
    value: "SECONDS",
    range: 1..=3600,
    unit: " seconds",
    about: "So long a request to a server may take, reconnects included (default 30). Pages on a server that has not \
            answered for that long are lost to who touches them, until it answers again.",
};

/// Number of connections to a server.
const CONNECTIONS: KindOption = KindOption {
    name: "connections",
    value: "N",
    range: 1..=MAX_CONNECTIONS as u64,
    unit: "",
    about: "Connections to a server (default: 4, and one for each thread that serves faults, if it says that all see \
            the same data, else 1).",
};

/// NBD servers.
pub struct NbdKind;

impl DeviceKind for NbdKind {
    type Place = NbdUri;

    const FORMS: &'static [PlaceForm] = &[
        PlaceForm {
            syntax: "nbd://HOST[:PORT]/EXPORT",
            about: "An export of an NBD server, whose content is lost; with nbds:// by TLS. ?tls-certificates=FOLDER \
                    names the folder of ca-cert.pem, client-cert.pem and client-key.pem, ?tls-hostname=NAME the name \
                    in the server's certificate.",
            short: Some(ShortForm { written: "nbd://HOST[:PORT]/EXPORT", noun: "an NBD server" }),
        },
        PlaceForm {
            syntax: "nbd+unix:///EXPORT?socket=PATH",
            about: "The same by a Unix socket; also nbds+unix.",
            short: None,
        },
    ];
    const OPTIONS: &'static [KindOption] = &[TIMEOUT, CONNECTIONS];
    const OPTIONS_ARE_FOR: &'static str = "NBD servers";
    const WITHOUT_SIZE: Option<&'static str> = Some("of an export all");
    const EXAMPLE: &'static str = "nbd://there/swap";

    fn recognises(text: &str) -> bool {
        text.contains("://")
    }

    fn read(text: &str) -> Result<NbdUri, String> {
        text.parse()
    }

    fn open(uri: &NbdUri, request: &OpenRequest<'_>) -> Result<Box<dyn Device>, String> {
        let timeout = request.options.get(&TIMEOUT).map_or(NbdOptions::default().timeout, Duration::from_secs);
        let connections = request.options.get(&CONNECTIONS).map(|number| number as u32);
        let options = NbdOptions { timeout, connections, size: request.size };
        Ok(Box::new(NbdDevice::open(uri, options).map_err(|error| error.to_string())?))
    }

    #[cfg(test)]
    fn for_tests(_: &std::path::Path) -> String {
        liar::Liar::new(liar::Lie::None, 16 << 20).uri()
    }
}

#[cfg(test)]
#[path = "../../tests/liar/mod.rs"]
mod liar;
