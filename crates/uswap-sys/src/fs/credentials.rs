//! Files made for others: the user and group for which a thread makes files.

use std::marker::PhantomData;

/// While this value lives, what this thread makes in file systems belongs to another user and
/// group, and is permitted as to them.
#[derive(Debug)]
pub struct ActingFor {
    /// The value must be dropped by its own thread.
    not_send: PhantomData<*const ()>,
}

impl ActingFor {
    /// This thread acts for the user and the group from now on. It does so without effect where the
    /// process may not (it is not root): files then belong to the process's own user.
    pub fn begin(user: u32, group: u32) -> Self {
        set(user, group);
        Self { not_send: PhantomData }
    }
}

impl Drop for ActingFor {
    fn drop(&mut self) {
        // SAFETY: always succeed.
        let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
        set(user, group);
    }
}

fn set(user: u32, group: u32) {
    // SAFETY: no pointers. The calls change this thread alone, and never fail with an error code.
    // A user other than root takes no right from the thread to change the group back.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, group);
        libc::syscall(libc::SYS_setfsuid, user);
    }
}
