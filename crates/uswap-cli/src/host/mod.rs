//! Properties of the machine and the environment: capabilities, user namespace, container, kernel
//! version.

pub(crate) mod probe;
pub(crate) mod ward;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The name of the container kind of a pod.
pub const KUBERNETES: &str = "Kubernetes";

/// The environment of this process.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// The kind of container in which this process runs, if any.
    pub container: Option<&'static str>,
    /// Whether CAP_SYS_PTRACE is in the effective set.
    pub may_trace: bool,
    /// Whether the user namespace maps every id to itself, as the initial one does.
    pub initial_user_namespace: bool,
}

impl Host {
    /// Reads the properties.
    pub fn look() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Self { container: container(), may_trace: has_sys_ptrace(&status), initial_user_namespace: is_identity(&map) }
    }
}

/// Whether the programs of a run could not open this process's descriptors, through which they load
/// the agent. The kernel lets a program do so only if the program holds every capability that this
/// process holds. Over an exec, programs of users other than root keep only the ambient
/// capabilities; capabilities of the binary (setcap) are not among them. Also, the /proc files of a
/// process that is not dumpable belong to root.
pub fn is_opaque() -> bool {
    let me = uswap_sys::process::user();
    let foreign = fs::metadata("/proc/self/status").is_ok_and(|metadata| metadata.uid() != me);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    foreign || (me != 0 && has_more_than_ambient(&status))
}

fn has_more_than_ambient(status: &str) -> bool {
    capabilities(status, "CapPrm:") & !capabilities(status, "CapAmb:") != 0
}

fn capabilities(status: &str, set: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(set));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

/// Major and minor number of a release like `6.18.44-generic`.
pub fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn has_sys_ptrace(status: &str) -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    capabilities(status, "CapEff:") >> CAP_SYS_PTRACE & 1 == 1
}

fn is_identity(uid_map: &str) -> bool {
    uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn container() -> Option<&'static str> {
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Some(KUBERNETES);
    }
    if Path::new("/.dockerenv").exists() {
        return Some("Docker");
    }
    if Path::new("/run/.containerenv").exists() {
        return Some("Podman");
    }
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let known = [("kubepods", KUBERNETES), ("/docker", "Docker"), ("libpod", "Podman"), ("/lxc", "LXC")];
    let kind = known.into_iter().find(|(word, _)| groups.contains(word)).map(|(_, kind)| kind);
    kind.or_else(|| std::env::var_os("container").map(|_| "a container"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_capabilities_and_namespaces_are_read() {
        assert_eq!(kernel_version("6.18.44-generic"), Some((6, 18)));
        assert_eq!(kernel_version("7.0-rc1"), Some((7, 0)));
        assert_eq!(kernel_version("linux"), None);
        assert!(has_sys_ptrace("Name:\tx\nCapEff:\t0000000000080000\n"));
        assert!(!has_sys_ptrace("CapEff:\t0000000000040000\n") && !has_sys_ptrace(""));
        assert!(has_more_than_ambient("CapPrm:\t00000000000c0000\nCapAmb:\t0000000000080000\n"));
        assert!(!has_more_than_ambient("CapPrm:\t0000000000080000\nCapAmb:\t00000000000c0000\n"));
        assert!(is_identity("         0          0 4294967295\n"));
        assert!(!is_identity("0 1000 1\n") && !is_identity(""));
    }
}
