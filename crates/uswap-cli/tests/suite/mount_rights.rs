//! Who may do what in a mount: users, access control lists, and a mount of a user other than root.

use crate::common;

use std::ffi::CStr;
use std::fs::{self, File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use uswap_sys::fs::xattr;

use common::mounted::{Mounted, content};
use common::{USWAP, command, installed, is_root, not_here, skip};

/// Who is not root makes files of his own, and is refused what the source refuses.
#[test]
fn other_users_have_their_own_rights() {
    let Some(mounted) = Mounted::new(&["--ram", "64M"]) else { return };
    fs::set_permissions(mounted.source(""), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("a mode");
    mounted.put("secret", b"nobody's");
    fs::set_permissions(mounted.source("secret"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
    // The folders above need not be open to others: the shell begins in the mount.
    let script =
        "umask 027; echo mine > mine && mkdir folder && ! cat secret 2>/dev/null && ! chown 0 mine 2>/dev/null";
    let mut shell = Command::new("timeout");
    shell.args(["20", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script]);
    let output = shell.current_dir(mounted.path("")).output().expect("a shell");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let made = fs::metadata(mounted.source("mine")).expect("a file");
    assert_eq!((made.uid(), made.gid(), made.mode() & 0o777), (65534, 65534, 0o640));
    assert_eq!(fs::metadata(mounted.source("folder")).expect("a folder").uid(), 65534);
}

/// An access control list as an attribute has it (linux/posix_acl_xattr.h): tag, permissions, user
/// or group.
fn access_list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

const ACCESS: &CStr = c"system.posix_acl_access";
const DEFAULT: &CStr = c"system.posix_acl_default";

/// The owner may do all, one other user what is said, nobody else anything.
fn for_one_user(user: u32, permissions: u16) -> Vec<u8> {
    let (owner, one, group, mask, others) = (1, 2, 4, 0x10, 0x20);
    let nobody = u32::MAX;
    access_list(&[
        (owner, 7, nobody),
        (one, permissions, user),
        (group, 0, nobody),
        (mask, permissions, nobody),
        (others, 0, nobody),
    ])
}

fn attribute(path: &Path, name: &CStr) -> Vec<u8> {
    let mut value = vec![0; 1024];
    let length = xattr::get(File::open(path).expect("a file").as_fd(), name, &mut value).unwrap_or(0);
    value.truncate(length);
    value
}

/// Access control lists of the source hold in the mount, and so do those of a folder for what is
/// made in it.
#[test]
fn access_control_lists_hold() {
    let Some(mounted) = Mounted::new(&["--ram", "64M", "--revalidate", "0"]) else { return };
    let set = |path: &Path, name: &CStr, list: &[u8]| xattr::set(File::open(path)?.as_fd(), name, list, 0);
    fs::set_permissions(mounted.source(""), Permissions::from_mode(0o755)).expect("a mode");
    mounted.put("secret", b"for one");
    if set(&mounted.source("secret"), ACCESS, &for_one_user(65534, 4)).is_err() {
        return not_here("the file system has no access control lists");
    }
    let may_read = |user: u32| {
        let mut cat = Command::new("timeout");
        let user = format!("--reuid={user}");
        cat.args(["20", "setpriv", &user, "--regid=65533", "--clear-groups", "cat", "secret"]);
        cat.current_dir(mounted.path("")).output().expect("cat").stdout == b"for one"
    };
    assert_eq!([65534, 65533].map(may_read), [true, false]);
    set(&mounted.path("secret"), ACCESS, &for_one_user(65533, 4)).expect("a list");
    assert_eq!([65534, 65533].map(may_read), [false, true]);
    assert_eq!(attribute(&mounted.source("secret"), ACCESS), for_one_user(65533, 4));

    // The mask of who makes a file does not count where the folder has a list.
    let made = ["mount", "plain"].map(|name| {
        let folder = mounted.scratch.path(name).join("shared");
        fs::create_dir(&folder).expect("a folder");
        set(&folder, DEFAULT, &for_one_user(65534, 6)).expect("a list");
        let mut shell = Command::new("sh");
        shell.args(["-c", "umask 077; echo a > file; mkdir folder; mknod pipe p"]).current_dir(&folder);
        assert!(shell.status().expect("a shell").success());
        ["file", "folder"].map(|name| {
            let (path, mode) = (folder.join(name), fs::metadata(folder.join(name)).expect("a file").mode());
            (mode, attribute(&path, ACCESS), attribute(&path, DEFAULT))
        })
    });
    assert!(!made[0][0].1.is_empty() && !made[0][1].2.is_empty());
    assert_eq!(made[0], made[1]);
}

/// A folder of another user, in which the mount is until the test ends.
struct OfAnotherUser(PathBuf);

impl OfAnotherUser {
    const ID: u32 = 65534;

    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("uswap-helper-{}", std::process::id()));
        for path in [folder.clone(), folder.join("source"), folder.join("mount")] {
            fs::create_dir(&path).expect("a folder");
            chown(&path, Some(Self::ID), Some(Self::ID)).expect("an owner");
        }
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut setpriv = command("timeout");
        setpriv.args(["30", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
        setpriv.args(words).current_dir(&self.0).output().expect("setpriv")
    }
}

impl Drop for OfAnotherUser {
    fn drop(&mut self) {
        let _ = command("umount").args(["-l", &self.path("mount")]).stderr(Stdio::null()).status();
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A user other than root mounts by fusermount3, and nobody else has access, root neither.
#[test]
fn another_user_mounts_by_the_helper() {
    if !installed("fusermount3") || !is_root() {
        return skip("needs root, and fusermount3 (package fuse3)");
    }
    if fs::metadata("/dev/fuse").map_or(0, |device| device.mode()) & 0o6 != 0o6 {
        return not_here("/dev/fuse is not open to all users");
    }
    let (folder, name) = (OfAnotherUser::new(), format!("helper-{}", std::process::id()));
    let (source, mount) = (folder.path("source"), folder.path("mount"));
    fs::write(folder.path("source/file"), content(300, 1)).expect("a file");
    let succeeds = |words: &[&str]| {
        let output = folder.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    succeeds(&[USWAP, "mount", "--ram", "32M", "--name", &name, &source, &mount]);
    assert!(succeeds(&["cat", "mount/file"]) == content(300, 1));
    assert_eq!(succeeds(&["sh", "-c", "echo mine > mount/new && cat source/new"]), b"mine\n");
    assert!(String::from_utf8_lossy(&succeeds(&[USWAP, "status", &name])).contains("found in memory"));
    assert!(fs::read(folder.path("mount/file")).is_err(), "others have access");
    succeeds(&[USWAP, "umount", &mount]);
    assert_eq!(fs::read_dir(&mount).expect("a folder").count(), 0);
}
