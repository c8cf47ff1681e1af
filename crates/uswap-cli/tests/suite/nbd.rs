//! Swap on NBD servers: the programs that check each of their pages, with each server of the
//! system, with faults that nbdkit's filters make, with servers that are killed, and with one of
//! our own that lies.

use crate::common;
#[path = "../../../uswap-device/tests/liar/mod.rs"]
mod liar;

use std::ffi::OsString;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::nbd::{Kind, Server, free_port};
use common::victims::victim;
use common::{Launch, Outcome, Running, Scratch, figures, installed, skip, under};
use liar::{Liar, Lie};
use serde_json::Value;

fn torture(arguments: &str) -> Vec<OsString> {
    let all = [victim("torture").into_os_string()].into_iter();
    let words = arguments.split_whitespace().map(OsString::from);
    all.chain(words).chain(["--timeout".into(), "100".into()]).collect()
}

fn over(spec: &str) -> Launch {
    under("44M").deadline(120).option("--pool", "5").option("--swap", spec).faults("audit")
}

/// It read only right pages, and pages went to the device and came back.
fn survived(outcome: &Outcome) {
    outcome.expect(0).paged();
    assert_eq!(outcome.stat("checksum_errors") + outcome.stat("poisoned_pages"), 0, "{}", outcome.account());
    assert!(outcome.stat("pswpin") > 100, "{}", outcome.account());
}

fn connections(outcome: &Outcome) -> Vec<Value> {
    let stats = outcome.stats.as_ref().expect("figures");
    stats["devices"][0]["connections"].as_array().expect("connections").clone()
}

fn reconnects(figures: &Value) -> u64 {
    let connections = figures["devices"][0]["connections"].as_array();
    connections.into_iter().flatten().filter_map(|one| one["reconnects"].as_u64()).sum()
}

fn serves(server: &Server, arguments: &str) {
    survived(&over(&server.uri()).run(torture(arguments)));
}

#[test]
fn nbdkit_serves() {
    need_userfaultfd!();
    need_server!(Kind::Nbdkit);
    let server = Server::tcp(Kind::Nbdkit);
    let outcome = over(&server.uri()).run(torture("--seed 51 --seconds 2 --memory 60"));
    survived(&outcome);
    let all = connections(&outcome);
    assert!(all.len() == 4 && all.iter().all(|one| one["state"] == "up" && one["reconnects"] == 0), "{all:?}");
    assert!(outcome.stat("queued_reads") > 20, "owners ask themselves: {}", outcome.account());
    assert!(all.iter().all(|one| one["round_trip_us"].as_u64().is_some_and(|time| time > 0)), "{all:?}");
}

#[test]
fn nbd_server_serves() {
    need_userfaultfd!();
    need_server!(Kind::NbdServer);
    serves(&Server::tcp(Kind::NbdServer), "--seed 52 --seconds 2 --memory 56");
}

#[test]
fn qemu_nbd_serves() {
    need_userfaultfd!();
    need_server!(Kind::Qemu);
    serves(&Server::tcp(Kind::Qemu), "--seed 53 --seconds 2 --memory 56 --processes 1");
}

#[test]
fn unix_sockets_serve() {
    need_userfaultfd!();
    for kind in Kind::ALL {
        need_server!(kind);
        serves(&Server::unix(kind), "--seed 54 --seconds 1 --memory 56 --processes 1");
    }
}

/// One connection, each page the device's: the engine's delays make the reads of many meet.
#[test]
fn one_connection_with_delays() {
    need_userfaultfd!();
    need_server!(Kind::Nbdkit);
    let server = Server::tcp(Kind::Nbdkit);
    let launch = over(&format!("{},connections=1", server.uri()));
    let launch = launch.faults("audit,delay-install=100,delay-gate=100,delay-store=500");
    let outcome = launch.run(torture("--seed 55 --seconds 2 --memory 56 --threads 4"));
    survived(&outcome);
    assert_eq!(connections(&outcome).len(), 1);
}

/// Requests that take long, and a link of ten megabytes a second.
#[test]
fn slow_servers_serve() {
    need_userfaultfd!();
    need_server!(Kind::Nbdkit);
    for (options, parameters) in
        [(&["--filter=delay"][..], &["rdelay=5ms", "wdelay=5ms"][..]), (&["--filter=rate"], &["rate=80M"])]
    {
        serves(&Server::nbdkit(options, parameters), "--seed 56 --seconds 2 --memory 52 --processes 0");
    }
}

/// A server without TRIM, structured replies, several connections or more than 64 KiB a request.
#[test]
fn modest_servers_serve() {
    need_userfaultfd!();
    need_server!(Kind::Nbdkit);
    let policy =
        ["blocksize-minimum=512", "blocksize-maximum=64K", "blocksize-error-policy=error", "multi-conn-mode=disable"];
    let options =
        ["--no-sr", "--filter=blocksize-policy", "--filter=multi-conn", "--filter=nozero", "--filter=noparallel"];
    let server = Server::nbdkit(&options, &policy);
    let outcome = over(&server.uri()).run(torture("--seed 57 --seconds 2 --memory 56"));
    survived(&outcome);
    assert_eq!(connections(&outcome).len(), 1);
}

fn start_torture(server: &Server, options: &str, seconds: u32) -> Running {
    let spec = format!("{}{options}", server.uri());
    begun(over(&spec).start(torture(&format!("--seed 58 --seconds {seconds} --memory 66"))))
}

/// A run whose devices are open.
fn begun(running: Running) -> Running {
    running.command();
    running
}

/// Killed and started again every second and a half, its file kept: nobody notices but by waiting.
/// The next time comes once all is well again, however long that takes on a machine with much to
/// do: nbd-server looks for large primes before it answers, which takes some 30 s there.
fn survives_restarts(kind: Kind) {
    let mut server = Server::tcp(kind);
    let name = format!("restarts-{kind:?}-{}", std::process::id());
    let launch = over(&format!("{},timeout=100", server.uri())).option("--name", &name);
    let running = begun(launch.start(torture("--seed 58 --seconds 90 --memory 56 --processes 1")));
    std::thread::sleep(Duration::from_secs(2));
    for time in 1..=4 {
        server.kill();
        std::thread::sleep(Duration::from_millis(300));
        server.start();
        std::thread::sleep(Duration::from_millis(1200));
        running.until("a connection made anew", || (reconnects(&figures(&name)) >= time).then_some(()));
    }
    let outcome = running.enough();
    survived(&outcome);
    let reconnects = reconnects(outcome.stats.as_ref().expect("figures"));
    assert!(outcome.stat("queued_reads") > 0, "{}", outcome.account());
    assert!(reconnects >= 4, "{reconnects} reconnects: {}", outcome.account());
    outcome.complains("connecting again").complains("connected again after");
}

#[test]
fn nbdkit_is_killed_and_comes_back() {
    need_userfaultfd!();
    need_server!(Kind::Nbdkit);
    survives_restarts(Kind::Nbdkit);
}

#[test]
fn nbd_server_is_killed_and_comes_back() {
    need_userfaultfd!();
    need_server!(Kind::NbdServer);
    survives_restarts(Kind::NbdServer);
}

#[test]
fn qemu_nbd_is_killed_and_comes_back() {
    need_userfaultfd!();
    need_server!(Kind::Qemu);
    survives_restarts(Kind::Qemu);
}

/// Stopped for two seconds, as behind a link that is gone for a moment. By qemu-nbd: nbdkit ends
/// in most runs when it goes on after a stop.
#[test]
fn a_server_that_stalls_goes_on() {
    need_userfaultfd!();
    need_server!(Kind::Qemu);
    let server = Server::tcp(Kind::Qemu);
    let running = start_torture(&server, ",timeout=5", 8);
    std::thread::sleep(Duration::from_secs(2));
    for _ in 0..2 {
        server.signal(19);
        std::thread::sleep(Duration::from_millis(2500));
        server.signal(18);
        std::thread::sleep(Duration::from_millis(500));
    }
    let outcome = running.wait();
    assert!(server.is_alive(), "the server ended");
    survived(&outcome);
    assert!(outcome.stat("queued_reads") > 0, "{}", outcome.account());
}

fn sigbus_report(launch: Launch) -> Running {
    let arguments = "--memory 96 --rounds 3 --timeout 100".split(' ').map(Into::into);
    launch.start([victim("sigbus_report").into_os_string()].into_iter().chain(arguments))
}

fn count(outcome: &Outcome, word: &str) -> u64 {
    let line = outcome.stdout.lines().last().unwrap_or_default();
    let mut words = line.split_whitespace().skip_while(|found| *found != word).skip(1);
    words.next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {word}: {}", outcome.account()))
}

/// Some pages are lost, each named; every other one is right.
fn pages_are_lost(outcome: &Outcome) {
    outcome.expect(0).complains("is lost").complains("SIGBUS");
    let (good, lost) = (count(outcome, "good"), count(outcome, "sigbus"));
    assert!(lost > 0 && good > 0 && good + lost == 96 << 8, "{}", outcome.account());
}

/// Gone for good: after its time the pages that lie there are lost, each by name, and the program
/// goes on.
#[test]
fn a_server_that_is_gone_costs_its_pages_in_bounded_time() {
    need_userfaultfd!();
    need_server!(Kind::Nbdkit);
    let mut server = Server::tcp(Kind::Nbdkit);
    let other = Scratch::new();
    let launch = under("48M").deadline(100).option("--pool", "0").flag("-q");
    let launch = launch.option("--swap", format!("{},timeout=2,prio=1,size=32M", server.uri()));
    let running = sigbus_report(launch.option("--swap", format!("{},size=1G", other.path("swap").display())));
    running.says("round 1 ");
    server.kill();
    let outcome = running.wait();
    pages_are_lost(&outcome);
    outcome.complains(&server.uri()).complains("lost, nothing went for 2s");
    assert!(outcome.elapsed < Duration::from_secs(60), "{}", outcome.account());
}

/// With nowhere else to go the run ends with the status and the words of full swap.
#[test]
fn a_run_whose_only_server_is_gone_ends_by_name() {
    need_userfaultfd!();
    need_server!(Kind::Nbdkit);
    let mut server = Server::tcp(Kind::Nbdkit);
    let running = start_torture(&server, ",timeout=2", 60);
    std::thread::sleep(Duration::from_secs(2));
    let begun = Instant::now();
    server.kill();
    let outcome = running.wait();
    assert!(outcome.code() != 0 && outcome.hung.is_none(), "{}", outcome.account());
    outcome.expect(outcome.code()).complains(&server.uri()).complains("lost, nothing went for 2s");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    // What a child that met a lost page says of its end is not meant.
    assert!(!outcome.stderr.contains("expected version"), "a page was wrong: {}", outcome.account());
}

/// A server that does not answer does not keep a run from ending.
#[test]
fn a_run_ends_though_its_server_is_stopped() {
    need_userfaultfd!();
    need_server!(Kind::Nbdkit);
    let server = Server::tcp(Kind::Nbdkit);
    let spec = format!("{},timeout=600", server.uri());
    let mut running = over(&spec).start(torture("--seed 58 --seconds 60 --memory 66 --processes 0"));
    std::thread::sleep(Duration::from_secs(2));
    server.signal(19);
    std::thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    running.signal(15);
    running.waits();
    let outcome = running.wait();
    server.signal(18);
    assert!(outcome.hung.is_none() && outcome.left.is_empty(), "{}", outcome.account());
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?} {}", begun.elapsed(), outcome.account());
}

/// Reads and writes that fail now and then: a second try, the other device; never a wrong page.
#[test]
fn errors_of_the_server_cost_no_wrong_page() {
    need_userfaultfd!();
    need_server!(Kind::Nbdkit);
    let other = Scratch::new();
    // Errors begin when this file is there: at the start the server must be accepted.
    let errors = other.path("errors");
    let file = format!("error-file={}", errors.display());
    let rates = ["error-pread-rate=0.01%", "error-pwrite-rate=20%", "error=EIO", &file];
    let server = Server::nbdkit(&["--filter=error"], &rates);
    let launch = over(&format!("{},prio=1", server.uri()));
    let running = launch
        .option("--swap", format!("{},size=1G", other.path("swap").display()))
        .start(torture("--seed 60 --seconds 3 --memory 66"));
    running.command();
    std::fs::write(&errors, "").expect("errors");
    let outcome = running.wait();
    outcome.expect(0).paged();
    assert_eq!(outcome.stat("checksum_errors"), 0, "{}", outcome.account());
    let device = &outcome.stats.as_ref().expect("figures")["devices"][0];
    assert!(device["write_errors"].as_u64().is_some_and(|errors| errors > 0), "{device}");
}

/// The server's store is changed behind its back.
#[test]
fn other_data_is_found_out_and_named() {
    need_userfaultfd!();
    need_server!(Kind::Nbdkit);
    let server = Server::tcp(Kind::Nbdkit);
    let launch = under("48M").deadline(100).option("--pool", "0").option("--swap", server.uri());
    let running = sigbus_report(launch);
    running.says("round 1 ");
    let disk = std::fs::OpenOptions::new().write(true).open(server.disk()).expect("the disk");
    for piece in (8..40).step_by(4) {
        disk.write_all_at(&vec![0xa5; 1 << 20], piece << 20).expect("junk");
    }
    let outcome = running.wait();
    pages_are_lost(&outcome);
    assert!(outcome.stat("checksum_errors") > 0, "{}", outcome.account());
    outcome.complains(&server.uri());
}

/// A server that acknowledges writes and forgets them, or gives other data: no program reads it.
#[test]
fn a_server_that_lies_about_its_store_is_found_out() {
    need_userfaultfd!();
    for lie in [Lie::Forgets, Lie::OtherData] {
        let liar = Liar::new(Lie::None, 1 << 30);
        let launch = under("48M").deadline(100).option("--pool", "0").option("--swap", liar.uri());
        let running = sigbus_report(launch);
        // About half of the pages are written yet; later the pages there are clean and not written
        // again.
        running.says("filled");
        liar.set(lie);
        let outcome = running.wait();
        outcome.expect(0).complains("is lost").complains(&liar.uri());
        assert!(outcome.stat("checksum_errors") > 0 && count(&outcome, "sigbus") > 0, "{}", outcome.account());
    }
}

/// A mirror of a server and a file, or of two servers: one half is killed, and all pages are still
/// right.
#[test]
fn a_mirror_goes_on_with_one_half() {
    need_userfaultfd!();
    need_server!(Kind::Nbdkit);
    for with_file in [true, false] {
        let (mut server, mut other, scratch) = (Server::tcp(Kind::Nbdkit), Server::tcp(Kind::Nbdkit), Scratch::new());
        let half = if with_file { scratch.path("half").display().to_string() } else { other.uri() };
        let spec = format!("{},mirror={half},timeout=1,size=1G", server.uri());
        let running = over(&spec).start(torture("--seed 61 --seconds 8 --memory 66"));
        std::thread::sleep(Duration::from_secs(3));
        if with_file {
            server.kill()
        } else {
            other.kill()
        }
        let outcome = running.wait();
        survived(&outcome);
        outcome.complains("is out of the mirror for good");
        let device = &outcome.stats.as_ref().expect("figures")["devices"][0];
        assert!(device["note"].as_str().is_some_and(|note| note.contains("is out")), "{device}");
    }
}

fn uswap(words: &[&str]) -> Output {
    Command::new(common::USWAP).args(words).output().expect("uswap runs")
}

fn says(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// `swapon` and `swapoff` while the program runs; the server's file is empty afterwards.
#[test]
fn a_server_comes_and_goes() {
    need_userfaultfd!();
    need_server!(Kind::Nbdkit);
    let (server, scratch) = (Server::tcp(Kind::Nbdkit), Scratch::new());
    let name = format!("nbd-comes-{}", std::process::id());
    let file = format!("{},size=1G", scratch.path("swap").display());
    let launch = over(&file).option("--name", &name);
    let running = launch.start(torture("--seed 62 --seconds 90 --memory 66"));
    running.engine();
    std::thread::sleep(Duration::from_secs(1));
    let ordered = uswap(&["swapon", &name, &format!("{},prio=5", server.uri())]);
    assert_eq!(ordered.status.code(), Some(0), "{}", says(&ordered));
    let used = || figures(&name)["devices"][0]["used_bytes"].as_u64().filter(|bytes| *bytes > 4 << 20);
    running.until("pages on the server", used);
    let table = says(&uswap(&["status", &name]));
    assert!(table.contains("ROUND TRIP") && table.contains(&format!("{} 4", server.uri())), "{table}");
    let refused = uswap(&["swapon", &name, "nbd://127.0.0.1:1/x"]);
    assert!(refused.status.code() == Some(125) && says(&refused).contains("refused"), "{}", says(&refused));
    let ordered = uswap(&["swapoff", &name, &server.uri()]);
    assert_eq!(ordered.status.code(), Some(0), "{}", says(&ordered));
    use std::os::unix::fs::MetadataExt;
    let left = server.disk().metadata().expect("a disk").blocks() * 512;
    assert!(left < 1 << 20, "{left} bytes stay behind on the server");
    survived(&running.enough());
}

/// What cannot be is refused with a sentence and status 125, before the command starts.
#[test]
fn what_cannot_be_is_refused_with_a_sentence() {
    need_userfaultfd!();
    need_server!(Kind::Nbdkit);
    let (plain, read_only) = (Server::tcp(Kind::Nbdkit), Server::nbdkit(&["-r"], &[]));
    let small = Server::nbdkit(&["--filter=truncate"], &["truncate=1M"]);
    let full = Server::tcp(Kind::Nbdkit);
    std::fs::OpenOptions::new()
        .write(true)
        .open(full.disk())
        .and_then(|disk| disk.write_all_at(b"data", 0))
        .expect("data");
    let qemu = Kind::Qemu.is_here().then(|| Server::tcp(Kind::Qemu));
    let missing = qemu.as_ref().map(|server| server.uri().replace("/swap", "/other"));
    let nobody = format!("nbd://127.0.0.1:{}/", free_port());
    let mut cases = vec![
        ("nbd://no-such-host.invalid/x".to_string(), "\"no-such-host.invalid\" is not known"),
        (nobody, "cannot connect to 127.0.0.1"),
        ("nbd+unix:///?socket=/no/such/socket".into(), "cannot connect to /no/such/socket"),
        (read_only.uri(), "read-only"),
        (small.uri(), "less than 2 MiB"),
        (format!("{},size=1M", plain.uri()), "less than 2 MiB"),
        (full.uri(), "holds data that is not swap"),
        (plain.uri_of("nbds", ""), "has no TLS"),
        ("nbd:///x".into(), "the host is missing"),
        ("nbd://h:port/x".into(), "is no port"),
        ("http://h/x".into(), "unknown scheme"),
        (format!("{},timeout=0", plain.uri()), "between 1 and 3600"),
        (format!("{},mirror={}", plain.uri(), plain.uri()), "two different places"),
        (format!("{},mirror=/", plain.uri()), "directory"),
    ];
    cases.extend(missing.map(|uri| (uri, "no such export")));
    for (spec, why) in cases {
        let output = uswap(&["run", "--swap", &spec, "--", "echo", "started"]);
        let text = says(&output);
        assert!(output.status.code() == Some(125) && text.contains(why), "{spec}: {text}");
        assert!(!text.contains("started") && !text.contains("panicked"), "{spec}: {text}");
    }
}

/// An authority, a server and a client certificate, in the files that nbdkit and we look for.
fn certificates(folder: &Path, name: &str) {
    std::fs::create_dir_all(folder).expect("a folder");
    let openssl = |words: &str| {
        let output =
            Command::new("openssl").current_dir(folder).args(words.split_whitespace()).output().expect("openssl");
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    openssl(&format!("req -x509 {key} -keyout ca-key.pem -out ca-cert.pem -subj /CN=authority"));
    for (who, extension) in
        [("server", format!("subjectAltName={name}")), ("client", "extendedKeyUsage=clientAuth".into())]
    {
        openssl(&format!("req {key} -keyout {who}-key.pem -out {who}.csr -subj /CN={who}"));
        std::fs::write(folder.join("ext"), extension).expect("extensions");
        openssl(&format!(
            "x509 -req -in {who}.csr -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 2 -extfile ext -out \
             {who}-cert.pem"
        ));
    }
}

#[test]
fn tls_serves_with_certificates_and_is_refused_with_wrong_ones() {
    need_userfaultfd!();
    need_server!(Kind::Nbdkit);
    if !installed("openssl") {
        return skip("openssl is not installed");
    }
    let scratch = Scratch::new();
    let [good, other, elsewhere] = ["good", "other", "elsewhere"].map(|name| scratch.path(name));
    certificates(&good, "IP:127.0.0.1");
    certificates(&other, "IP:127.0.0.1");
    certificates(&elsewhere, "DNS:elsewhere.example");
    let serve = |folder: &Path, more: &str| {
        let folder = format!("--tls-certificates={}", folder.display());
        Server::nbdkit(&["--tls=require", &folder, more], &[])
    };
    let query = |folder: &Path| format!("tls-certificates={}", folder.display());
    let server = serve(&good, "--tls-verify-peer");
    let outcome = over(&server.uri_of("nbds", &query(&good))).run(torture("--seed 63 --seconds 3 --memory 66"));
    survived(&outcome);
    let away = serve(&elsewhere, "-v");
    let named = format!("{}&tls-hostname=elsewhere.example", query(&elsewhere));
    let ran = uswap(&["run", "--swap", &away.uri_of("nbds", &named), "--", "true"]);
    assert_eq!(ran.status.code(), Some(0), "{}", says(&ran));
    let empty = scratch.path("empty");
    std::fs::create_dir(&empty).expect("a folder");
    for (uri, why) in [
        (server.uri(), "the server wants TLS"),
        (server.uri_of("nbds", &query(&other)), "invalid peer certificate"),
        (server.uri_of("nbds", &query(&empty)), "ca-cert.pem"),
        (server.uri_of("nbds", ""), "UnknownIssuer"),
        (away.uri_of("nbds", &query(&elsewhere)), "not valid for name"),
    ] {
        let output = uswap(&["run", "--swap", &uri, "--", "echo", "started"]);
        let text = says(&output);
        assert!(output.status.code() == Some(125) && text.contains(why) && !text.contains("started"), "{uri}: {text}");
    }
}
