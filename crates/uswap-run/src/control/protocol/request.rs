//! The requests that a caller can send to a run. The list below is the only place where requests
//! and their fields are defined: the type, the check of incoming requests and the test of the
//! reference document are made from it.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{VERSION, VERSION_KEY, encode, other_version, take_version};

/// The key of a request's name.
const NAME_KEY: &str = "request";

macro_rules! requests {
    ($($(#[$doc:meta])* $variant:ident = $name:literal {
        $($(#[$about:meta])* $field:ident: $type:ty),* $(,)?
    })*) => {
        /// A request of a caller.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(tag = "request")]
        pub enum Request {
            $($(#[$doc])* #[serde(rename = $name)] $variant { $($(#[$about])* $field: $type),* }),*
        }

        /// All requests.
        pub(super) const SHAPES: &[Shape] = &[
            $(Shape { name: $name, fields: &[$(FieldShape { name: stringify!($field), fits: fits::<$type> }),*] }),*
        ];
    };
}

/// The form of a request on the wire.
pub(super) struct Shape {
    /// Its name.
    pub name: &'static str,
    /// Its fields.
    pub fields: &'static [FieldShape],
}

/// A field of a request.
pub(super) struct FieldShape {
    /// Its name.
    pub name: &'static str,
    /// Whether the field can have a value. A missing field counts as null.
    fits: fn(&Value) -> bool,
}

/// Whether a value is one of this type.
fn fits<T: DeserializeOwned>(value: &Value) -> bool {
    T::deserialize(value).is_ok()
}

requests! {
    /// Who the run is, and all figures.
    Status = "status" {}
    /// Another device.
    Swapon = "swapon" {
        /// `PATH,prio=N,size=SIZE`, as `--swap` takes it; the path is absolute.
        spec: String,
    }
    /// Empty a device and let it go. The answer comes when it has begun; the status tells how far
    /// it is.
    Swapoff = "swapoff" {
        /// The device's name in the status.
        device: String,
    }
    /// Stop the swapoff that is under way.
    SwapoffStop = "swapoff-stop" {}
    /// Another budget.
    Limit = "limit" {
        /// In bytes, or that the budget follows the cgroup.
        bytes: NewBudget,
    }
    /// Another compressor, for pages that are stored from now on.
    Compressor = "compressor" {
        /// `lz4`, `zstd` or `zstd:LEVEL`.
        compressor: String,
    }
    /// Let go of the program that was attached to. The answer comes when it has begun.
    Detach = "detach" {}
    /// What pages of a process hold, by questions and answers of another kind (`page_query.rs`)
    /// after the answer.
    Pages = "pages" {
        /// The process's number in the run's pid namespace.
        pid: u32,
    }
    /// A new group.
    GroupCreate = "group-create" {
        /// Its path.
        group: String,
        /// A size, a part of the limit above it (`50%`) or `max`; none is `max`.
        limit: Option<String>,
    }
    /// Another limit of a group.
    GroupLimit = "group-limit" {
        /// Its path.
        group: String,
        /// A size, a part of the limit above it (`50%`) or `max`.
        limit: String,
    }
    /// Put a process or a group into another group.
    GroupMove = "group-move" {
        /// The process's number in the run's pid namespace, or the group's path.
        what: String,
        /// The path of the other group; `/` is the run itself.
        group: String,
    }
    /// Remove a group; its processes go to the group above it.
    GroupRemove = "group-remove" {
        /// Its path.
        group: String,
    }
}

/// The budget that a caller orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NewBudget {
    /// The word `auto`: the budget follows the cgroup's limit.
    Auto,
    /// A number of bytes.
    #[serde(untagged)]
    Bytes(u64),
}

impl Request {
    /// The line to send, without its newline.
    pub fn encode(&self) -> String {
        encode(self)
    }

    /// Reads a line that was sent.
    ///
    /// # Errors
    /// The fault of the line, for the caller.
    pub fn decode(line: &[u8]) -> Result<Self, String> {
        let mut value: Value = serde_json::from_slice(line).map_err(not_a_request)?;
        let version = take_version(&mut value);
        match version {
            Some(VERSION) => {}
            Some(other) => return Err(other_version(VERSION, other)),
            None => return Err(not_a_request(format_args!("{VERSION_KEY:?} is no number"))),
        }
        check(&value)?;
        serde_json::from_value(value).map_err(not_a_request)
    }
}

/// Checks that a value is a request with all its fields, and no others.
fn check(value: &Value) -> Result<(), String> {
    let missing = |field: &str| not_a_request(format_args!("{field:?} is missing"));
    let name = value.get(NAME_KEY).and_then(Value::as_str).ok_or_else(|| missing(NAME_KEY))?;
    let shape = SHAPES.iter().find(|shape| shape.name == name).ok_or_else(|| format!("unknown request {name:?}"))?;
    let fits = |field: &FieldShape| (field.fits)(value.get(field.name).unwrap_or(&Value::Null));
    if let Some(field) = shape.fields.iter().find(|field| !fits(field)) {
        return Err(missing(field.name));
    }
    let is_known = |key: &str| key == NAME_KEY || shape.fields.iter().any(|field| field.name == key);
    match value.as_object().and_then(|fields| fields.keys().find(|key| !is_known(key))) {
        Some(unknown) => Err(not_a_request(format_args!("{name} has no field {unknown:?}"))),
        None => Ok(()),
    }
}

fn not_a_request(why: impl std::fmt::Display) -> String {
    format!("not a request: {why}")
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
