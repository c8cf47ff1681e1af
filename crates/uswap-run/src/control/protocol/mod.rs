//! The control protocol: the requests of a caller to the control socket of a run, and the run's
//! answers.
//!
//! A request is one JSON object on one line, and so is its answer. Both ends use the types of this
//! folder, so a field that is renamed here is renamed at both. Keys lie on the wire in alphabetical
//! order.
//!
//! **Versions.** Both lines carry [`VERSION`] as `protocol`; a line without it is of version 1,
//! which the builds before the field speak. The version grows when a request or a field changes its
//! meaning or goes away. A new request or a new figure does not change it: a run refuses requests
//! and fields that it does not know, and a caller ignores fields of answers that it does not know
//! and takes missing figures for zero.

pub mod answer;
pub mod request;
pub mod status;

use serde::Serialize;
use serde_json::Value;

pub use request::Request;

/// The version that this build speaks.
pub const VERSION: u64 = 1;
/// The version of a line that names none.
const UNNAMED_VERSION: u64 = 1;
/// The key of the version.
const VERSION_KEY: &str = "protocol";

/// A message or the figures as a JSON value, whose keys are in alphabetical order.
fn to_json<T: Serialize>(message: &T) -> Value {
    // Only a map whose keys are no text fails, and no message has one.
    serde_json::to_value(message).expect("a message is JSON")
}

/// A message or the figures for people and their programs: JSON over several lines, keys in
/// alphabetical order.
pub fn in_json<T: Serialize>(message: &T) -> String {
    format!("{:#}\n", to_json(message))
}

/// A line of the wire without its newline: the message's object with the version added to its
/// fields.
pub fn encode<T: Serialize>(message: &T) -> String {
    let mut value = to_json(message);
    value[VERSION_KEY] = VERSION.into();
    value.to_string()
}

/// Takes the version out of a line. `None`: the field holds no version.
fn take_version(line: &mut Value) -> Option<u64> {
    match line.as_object_mut().and_then(|fields| fields.remove(VERSION_KEY)) {
        None => Some(UNNAMED_VERSION),
        Some(version) => version.as_u64(),
    }
}

/// Text for the caller's user when run and caller speak different versions: how to solve that.
fn other_version(run: u64, caller: u64) -> String {
    format!(
        "it speaks version {run} of the control protocol, and this uswap version {caller}; use the same build of uswap \
         that started the run"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use answer::*;
    use status::*;
    use uswap_pager::counters::CounterValues;
    use uswap_pager::load_control::LoadFigures;
    use uswap_remote::detach_progress::DetachProgress;

    fn keys<T: Serialize>(message: T) -> Vec<String> {
        match serde_json::to_value(message).expect("JSON") {
            Value::Object(fields) => fields.keys().cloned().collect(),
            other => panic!("no object: {other}"),
        }
    }

    /// Field names of all answers, counters aside: these stand in `counters.rs`.
    fn answer_fields() -> Vec<String> {
        let counters = keys(CounterValues::default());
        let moved = GroupMoved { process: Some(1), ..GroupMoved::default() };
        let limited = LimitAnswer { ram_bytes: Some(1), auto: Some(true), ..LimitAnswer::default() };
        [
            keys(RunStatus::default()),
            keys(RunFigures::default()).into_iter().filter(|key| !counters.contains(key)).collect(),
            keys(MmStat::default()),
            keys(ReserveFigures::default()),
            keys(LaneFigures::default()),
            keys(DeviceFigures::default()),
            keys(FaultLatency::default()),
            keys(uswap_core::HistogramSnapshot::default()),
            keys(ProcessFigures::default()),
            keys(UnmanagedFigures::default()),
            keys(GroupFigures::default()),
            keys(SwapoffProgress::default()),
            keys(DetachProgress::default()),
            keys(LoadFigures::default()),
            keys(SwaponAnswer::default()),
            keys(SwapoffBegun::default()),
            keys(SwapoffStopped::default()),
            keys(CompressorAnswer::default()),
            keys(DetachBegun::default()),
            keys(PagesBegun::default()),
            keys(GroupLimited::default()),
            keys(GroupRemoved::default()),
            keys(Refusal::default()),
            keys(limited),
            keys(moved),
        ]
        .concat()
    }

    /// The reference document names every request and field on the wire.
    #[test]
    fn every_request_and_field_stands_in_the_reference() {
        let page = include_str!("../../../../../docs/reference/control-protocol.md");
        let is_there = |name: &str| page.contains(&format!("`{name}`"));
        for shape in request::SHAPES {
            assert!(page.contains(&format!("| `{}` |", shape.name)), "request {}", shape.name);
            for field in shape.fields {
                assert!(is_there(field.name), "field {} of {}", field.name, shape.name);
            }
        }
        let missing: Vec<String> = answer_fields().into_iter().filter(|name| !is_there(name)).collect();
        assert!(missing.is_empty(), "fields of answers: {missing:?}");
        assert!(page.contains(&format!("This is version {VERSION}.")));
    }

    #[test]
    fn the_version_lies_beside_the_fields() {
        assert_eq!(encode(&PagesBegun { pid: 7 }), r#"{"pid":7,"protocol":1}"#);
        let version = |text: &str| take_version(&mut serde_json::from_str(text).expect("JSON"));
        assert_eq!(version(r#"{"protocol":9}"#), Some(9));
        assert_eq!([version("{}"), version("[]")], [Some(1); 2]);
        assert_eq!([version(r#"{"protocol":"1"}"#), version(r#"{"protocol":-1}"#)], [None; 2]);
    }
}
