//! Requests on the wire: those of the builds before there were versions, damaged ones, and round
//! trips.

use proptest::prelude::*;

use super::*;

fn read(text: &str) -> Result<Request, String> {
    Request::decode(text.as_bytes())
}

/// The exact requests that `uswap` sent before requests had a version.
#[test]
fn requests_of_earlier_builds_are_understood() {
    let text = str::to_owned;
    let group = || text("a/b");
    for (line, request) in [
        (r#"{"request":"status"}"#, Request::Status {}),
        (r#"{"request":"swapon","spec":"/swap,prio=3"}"#, Request::Swapon { spec: text("/swap,prio=3") }),
        (r#"{"device":"/tmp","request":"swapoff"}"#, Request::Swapoff { device: text("/tmp") }),
        (r#"{"request":"swapoff-stop"}"#, Request::SwapoffStop {}),
        (r#"{"bytes":1048576,"request":"limit"}"#, Request::Limit { bytes: NewBudget::Bytes(1 << 20) }),
        (r#"{"bytes":"auto","request":"limit"}"#, Request::Limit { bytes: NewBudget::Auto }),
        (r#"{"compressor":"zstd:9","request":"compressor"}"#, Request::Compressor { compressor: text("zstd:9") }),
        (r#"{"request":"detach"}"#, Request::Detach {}),
        (r#"{"pid":77,"request":"pages"}"#, Request::Pages { pid: 77 }),
        (
            r#"{"group":"a/b","limit":"max","request":"group-create"}"#,
            Request::GroupCreate { group: group(), limit: Some(text("max")) },
        ),
        (r#"{"group":"a/b","request":"group-create"}"#, Request::GroupCreate { group: group(), limit: None }),
        (
            r#"{"group":"a/b","limit":null,"request":"group-create"}"#,
            Request::GroupCreate { group: group(), limit: None },
        ),
        (
            r#"{"group":"a/b","limit":"50%","request":"group-limit"}"#,
            Request::GroupLimit { group: group(), limit: text("50%") },
        ),
        (
            r#"{"group":"a/b","request":"group-move","what":"12"}"#,
            Request::GroupMove { what: text("12"), group: group() },
        ),
        (r#"{"group":"a/b","request":"group-remove"}"#, Request::GroupRemove { group: group() }),
    ] {
        assert_eq!(read(line), Ok(request), "{line}");
    }
}

#[test]
fn what_is_wrong_with_a_request_is_told() {
    for (line, error) in [
        ("[]", "not a request: \"request\" is missing"),
        ("{}", "not a request: \"request\" is missing"),
        (r#"{"request":1}"#, "not a request: \"request\" is missing"),
        (r#"{"request":"x"}"#, "unknown request \"x\""),
        (r#"{"request":"group-x"}"#, "unknown request \"group-x\""),
        (r#"{"request":"swapon"}"#, "not a request: \"spec\" is missing"),
        (r#"{"request":"swapoff"}"#, "not a request: \"device\" is missing"),
        (r#"{"request":"limit"}"#, "not a request: \"bytes\" is missing"),
        (r#"{"request":"limit","bytes":-1}"#, "not a request: \"bytes\" is missing"),
        (r#"{"request":"limit","bytes":"much"}"#, "not a request: \"bytes\" is missing"),
        (r#"{"request":"compressor","compressor":9}"#, "not a request: \"compressor\" is missing"),
        (r#"{"request":"pages","pid":-1}"#, "not a request: \"pid\" is missing"),
        (r#"{"request":"pages","pid":4294967296}"#, "not a request: \"pid\" is missing"),
        (r#"{"request":"group-create"}"#, "not a request: \"group\" is missing"),
        (r#"{"request":"group-create","group":"a","limit":3}"#, "not a request: \"limit\" is missing"),
        (r#"{"request":"group-limit","group":"a"}"#, "not a request: \"limit\" is missing"),
        (r#"{"request":"group-move","group":"a"}"#, "not a request: \"what\" is missing"),
        (r#"{"request":"group-remove"}"#, "not a request: \"group\" is missing"),
        (r#"{"request":"status","more":1}"#, "not a request: status has no field \"more\""),
        (r#"{"request":"swapon","spec":"","size":1}"#, "not a request: swapon has no field \"size\""),
        (r#"{"request":"status","protocol":"1"}"#, "not a request: \"protocol\" is no number"),
    ] {
        assert_eq!(read(line), Err(error.to_owned()), "{line}");
    }
    for bad in [&b""[..], b"status", b"\xff\xfe", &[b'['; 4096]] {
        assert!(Request::decode(bad).is_err_and(|error| error.starts_with("not a request: ")), "{bad:?}");
    }
}

/// The version is reported as the fault, whatever else the caller's build has changed.
#[test]
fn a_request_of_another_version_is_told_to_use_the_same_build() {
    for line in [r#"{"request":"status","protocol":2}"#, r#"{"ask":"all","protocol":2}"#] {
        let error = read(line).expect_err("another version");
        assert!(error.contains("version 1") && error.contains("version 2"), "{error}");
        assert!(error.contains("use the same build"), "{error}");
    }
}

fn requests() -> impl Strategy<Value = Request> {
    let text = any::<String>;
    prop_oneof![
        Just(Request::Status {}),
        text().prop_map(|spec| Request::Swapon { spec }),
        text().prop_map(|device| Request::Swapoff { device }),
        Just(Request::SwapoffStop {}),
        any::<u64>().prop_map(|bytes| Request::Limit { bytes: NewBudget::Bytes(bytes) }),
        Just(Request::Limit { bytes: NewBudget::Auto }),
        text().prop_map(|compressor| Request::Compressor { compressor }),
        Just(Request::Detach {}),
        any::<u32>().prop_map(|pid| Request::Pages { pid }),
        (text(), any::<Option<String>>()).prop_map(|(group, limit)| Request::GroupCreate { group, limit }),
        (text(), text()).prop_map(|(group, limit)| Request::GroupLimit { group, limit }),
        (text(), text()).prop_map(|(what, group)| Request::GroupMove { what, group }),
        text().prop_map(|group| Request::GroupRemove { group }),
    ]
}

proptest! {
    #[test]
    fn what_is_sent_is_what_is_received(request in requests()) {
        let line = request.encode();
        prop_assert!(!line.contains('\n'));
        prop_assert_eq!(Request::decode(line.as_bytes()), Ok(request));
    }

    #[test]
    fn any_bytes_are_a_request_or_an_error_that_can_be_told(line in any::<Vec<u8>>()) {
        prop_assert!(Request::decode(&line).map_or_else(|error| !error.is_empty(), |_| true));
    }
}
