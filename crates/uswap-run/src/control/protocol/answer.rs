//! The answers of a run to orders; the answer to `status` is in `status.rs`. Sizes are in bytes,
//! counts in pages where a name says so.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{VERSION, other_version, take_version};

/// Reads an answer line. The inner error is the run's refusal, for the user.
///
/// # Errors
/// The line is no answer to the request.
pub fn decode_answer<T: DeserializeOwned>(line: &[u8]) -> serde_json::Result<Result<T, String>> {
    let mut value: Value = serde_json::from_slice(line)?;
    let version = take_version(&mut value);
    // A refusal is passed on in the run's words, whatever version the run speaks.
    if let Some(error) = value.get("error").and_then(Value::as_str) {
        return Ok(Err(error.to_owned()));
    }
    match version {
        Some(VERSION) => serde_json::from_value(value).map(Ok),
        other => Ok(Err(other_version(other.unwrap_or(0), VERSION))),
    }
}

/// Any request: it is refused, and nothing was changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Why, in a sentence for the user.
    pub error: String,
}

/// `swapon`: the device is used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwaponAnswer {
    /// Its name.
    pub device: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Devices of higher priority are used first.
    pub priority: i32,
}

/// `swapoff`: the device is being emptied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapoffBegun {
    /// Its name.
    pub device: String,
    /// Pages that lie there.
    pub pages: u64,
}

/// `swapoff-stop`: the device will be used again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapoffStopped {
    /// Its name.
    pub device: String,
}

/// `limit`: the budget from now on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitAnswer {
    /// The budget in bytes.
    pub ram_limit_bytes: u64,
    /// Bytes in use; only where a number of bytes was ordered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ram_bytes: Option<u64>,
    /// Whether the budget follows a cgroup from now on; only where `auto` was ordered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto: Option<bool>,
}

/// `compressor`: pages are stored by another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompressorAnswer {
    /// The compressor from now on.
    pub compressor: String,
    /// The one before it.
    pub before: String,
}

/// `detach`: pages are being brought back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachBegun {
    /// Pages that are to come back.
    pub pages: u64,
}

/// `pages`: questions can be asked on this connection from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagesBegun {
    /// The process, by its number in the run's pid namespace.
    pub pid: u32,
}

/// `group-create` and `group-limit`: the group's limit from now on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLimited {
    /// Its path.
    pub group: String,
    /// The limit in bytes; null: it has none of its own.
    pub limit_bytes: Option<u64>,
}

/// `group-move`: where the process or group is now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMoved {
    /// The process; only where one was moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// Of a process: the path of the group that it is in. Of a group: its own path now.
    pub group: String,
}

/// `group-remove`: the group is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRemoved {
    /// Its path.
    pub group: String,
    /// Processes that went to the group above it.
    pub processes: u64,
    /// Files that did; only of a mount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::super::encode;
    use super::*;
    use serde_json::json;

    fn read(line: &str) -> Result<GroupLimited, String> {
        decode_answer(line.as_bytes()).expect("an answer")
    }

    #[test]
    fn answers_come_through_and_unknown_fields_are_ignored() {
        let answer = GroupLimited { group: "a".into(), limit_bytes: None };
        let line = encode(&answer);
        assert_eq!(line, r#"{"group":"a","limit_bytes":null,"protocol":1}"#);
        assert_eq!(read(&line), Ok(answer.clone()));
        assert_eq!(read(r#"{"group":"a","more":[1],"limit_bytes":null}"#), Ok(answer));
        assert!(decode_answer::<GroupLimited>(b"").is_err());
        assert!(decode_answer::<GroupLimited>(b"{\"group\":3}").is_err());
    }

    #[test]
    fn a_refusal_is_told_before_a_version() {
        assert_eq!(read(r#"{"error":"no","protocol":7}"#), Err("no".into()));
        let error = read(r#"{"group":"a","protocol":7}"#).expect_err("another version");
        assert!(error.contains("it speaks version 7") && error.contains("use the same build"), "{error}");
    }

    #[test]
    fn fields_that_do_not_apply_are_left_out() {
        let moved = GroupMoved { process: None, group: "a".into() };
        assert_eq!(serde_json::to_value(moved).expect("JSON"), json!({ "group": "a" }));
        let limit = LimitAnswer { ram_limit_bytes: 1, ram_bytes: Some(2), auto: None };
        assert_eq!(serde_json::to_value(limit).expect("JSON"), json!({ "ram_limit_bytes": 1, "ram_bytes": 2 }));
    }
}
