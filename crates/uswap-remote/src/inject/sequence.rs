//! Injecting the agent into a program that has not loaded it.
//!
//! The attacher stops one thread of the program and makes it execute one system call: clone, by an
//! instruction that the program has anyway (mostly the one in its vdso). Then the thread gets its
//! registers back and goes on; it was stopped for some tens of microseconds. The new thread starts
//! stopped, with all signals blocked and a table of descriptors of its own. The attacher makes it
//! execute all other system calls while the program runs: they reserve the area, map the image from
//! its memfd (so that no memory is ever writable and executable), and make a pair of sockets, of
//! which the engine fetches one end. Then the new thread is released at the agent's entry, and
//! sends its greeting like any other agent.
//!
//! A thread that was in a system call continues it as after any interruption without a handler. The
//! kernel does that when the thread leaves a stop with the registers that it had on arrival. So the
//! thread is stopped twice: it leaves the second stop with its registers unchanged. Calls that
//! would tell the program of the interruption are not chosen ([`crate::inject::stoppable_thread`]).
//! Signals that arrive meanwhile stay pending: the thread blocks them until it has its registers
//! again.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use uswap_abi::layout::{AREA_BYTES, HEADER, PAGE, SA, STACK_BYTES, STACK_TOP, TID_WORD};
use uswap_sys::io::socket::MessageSocket;
use uswap_sys::process::trace::{self, Registers, Stop, Tracee};
use uswap_sys::process::{self, descriptor_of_thread};
use uswap_sys::procfs::maps::Maps;
use uswap_sys::procfs::vmread::{self, RemoteRange};

use crate::inject::elf_image::{Found, ImageLayout};
use uswap_pager::fault_points::FaultPoints;
use uswap_sys::procfs;

/// How long a thread may take to stop before it is left alone.
const ARRIVAL: Duration = Duration::from_millis(50);
/// The same for an agent that is to be removed: the program does not wait for it.
const AGENTS_ARRIVAL: Duration = Duration::from_secs(2);
/// CLONE_VM | CLONE_SIGHAND | CLONE_THREAD, as the agent's own (`start.rs`).
const THREAD: u64 = 0x100 | 0x800 | 0x10000;
const CODE_64: u64 = 0x33;
/// The kernel's name of the ring's mapping.
const RING: &str = "/memfd:uswap-ring";

mod number {
    pub const CLOSE: u64 = 3;
    pub const MMAP: u64 = 9;
    pub const MPROTECT: u64 = 10;
    pub const MUNMAP: u64 = 11;
    pub const MADVISE: u64 = 28;
    pub const RECVMSG: u64 = 47;
    pub const SOCKETPAIR: u64 = 53;
    pub const CLONE: u64 = 56;
    pub const EXIT: u64 = 60;
    pub const PRCTL: u64 = 157;
    pub const CLOSE_RANGE: u64 = 436;
}

/// Why the agent was not injected.
#[derive(Debug)]
pub enum InjectFailure {
    /// The process, or the thread, has ended.
    Gone,
    /// Not now: the thread was in a place where it should not be disturbed.
    Later,
    /// The thread has not stopped yet; the caller must detach from it when it does.
    Late(Tracee),
    /// The process cannot be attached to, for this reason.
    Unfit(&'static str),
    /// The kernel refused this step, with this errno.
    Refused(&'static str, i32),
}

impl From<std::io::Error> for InjectFailure {
    fn from(_: std::io::Error) -> Self {
        Self::Gone
    }
}

/// A program to inject into, as known before its thread is stopped.
#[derive(Clone, Copy, Debug)]
pub struct InjectTarget {
    /// The process.
    pub pid: u32,
    /// The thread to be stopped.
    pub tid: u32,
    /// Where the image and the area lie, if it has inherited them.
    pub inherited: Option<(u64, u64)>,
    /// Signature of the program's image when it was examined. Another signature means that the
    /// process has executed another program since.
    pub signature: [u64; 3],
}

/// An injected agent, whose greeting is awaited.
#[derive(Debug)]
pub struct Brought {
    /// The engine's end of its socket.
    pub socket: MessageSocket,
    /// How long the program's thread was stopped.
    pub stopped: Duration,
    /// Where the words lie that the kernel clears when threads end.
    pub words: Words,
}

/// Words that the kernel clears when threads end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// They lie in control blocks that the agent finds by the robust lists.
    Listed,
    /// All threads share one word, outside of their stacks (musl).
    One,
    /// There are none, or their places are not known (see [`crate::scan`]).
    Unknown,
}

/// Injects agents.
pub struct Injector<'a> {
    layout: &'a ImageLayout,
    image: BorrowedFd<'a>,
    faults: &'a FaultPoints,
}

/// A stopped thread that is made to execute system calls.
struct InjectedProcess<'a> {
    tracee: &'a Tracee,
    pid: u32,
    instruction: u64,
    registers: Registers,
    faults: &'a FaultPoints,
}

/// The program's thread, stopped.
struct HeldThread<'a> {
    remote: InjectedProcess<'a>,
    mask: u64,
}

impl<'a> Injector<'a> {
    /// `image`: the memfd of the agent.
    pub fn new(layout: &'a ImageLayout, image: BorrowedFd<'a>, faults: &'a FaultPoints) -> Self {
        Self { layout, image, faults }
    }

    /// Injects the agent into a process.
    ///
    /// # Errors
    /// The program goes on as if nothing had happened, except after [`InjectFailure::Late`].
    pub fn bring(
        &self,
        target: InjectTarget,
        signature: impl Fn() -> Option<[u64; 3]>,
    ) -> Result<Brought, InjectFailure> {
        let tracee = Tracee::seize(target.tid, target.tid == target.pid).map_err(|error| {
            match procfs::has_ended(target.tid) {
                // The kernel also returns EPERM for a thread that has ended; its process may go on.
                true => InjectFailure::Gone,
                false => InjectFailure::Refused("it may not be traced", error.raw_os_error().unwrap_or(0)),
            }
        })?;
        self.faults.step(target.pid);
        if self.faults.is_late() {
            return Err(InjectFailure::Late(tracee));
        }
        tracee.interrupt()?;
        if let Err(failure) = arrive(&tracee, ARRIVAL) {
            return Err(match failure {
                InjectFailure::Late(_) => InjectFailure::Late(tracee),
                other => other,
            });
        }
        let begun = Instant::now();
        // Raises the thread's priority, so that it need not wait for the program's other threads at
        // each step.
        let hurried = process::hurry_thread(target.tid);
        let planted = self.plant(&tracee, target, signature);
        hurried.inspect(|before| process::put_back(target.tid, before));
        let let_go = tracee.detach();
        let stopped = begun.elapsed();
        let planted = planted?;
        let_go?;
        self.furnish(target, planted, stopped)
    }

    /// Makes an agent unmap its image, its ring and its area, and end. None of them may still be
    /// registered.
    ///
    /// # Errors
    /// The agent does not stop, or is gone; mappings that were not unmapped stay.
    pub fn remove(&self, pid: u32, tid: u32, area: u64) -> Result<(), InjectFailure> {
        let Found::Inherited { base, area: found } = self.layout.find_in(pid) else { return Err(InjectFailure::Gone) };
        if found != area {
            return Err(InjectFailure::Gone);
        }
        // The agent's own instruction is unmapped with its image.
        let instruction = in_vdso(pid).ok_or(InjectFailure::Unfit("no system call instruction found"))?;
        let rings = mappings_of(pid, RING);
        let tracee = Tracee::seize(tid, false)?;
        self.faults.step(pid);
        tracee.interrupt()?;
        arrive(&tracee, AGENTS_ARRIVAL)?;
        tracee.tell_system_calls()?;
        let registers = tracee.registers()?;
        let remote = InjectedProcess { tracee: &tracee, pid, instruction, registers, faults: self.faults };
        for (start, end) in rings {
            let _ = remote.call("munmap", number::MUNMAP, [start, end - start, 0, 0, 0, 0]);
        }
        remote.withdraw(&Made { area: Some(area), image: Some(base) }, self.layout.span);
        Ok(())
    }

    /// Makes the new thread. Afterwards the program's thread has its registers back, also after a
    /// failure.
    fn plant(
        &self,
        tracee: &Tracee,
        target: InjectTarget,
        signature: impl Fn() -> Option<[u64; 3]>,
    ) -> Result<Planted, InjectFailure> {
        self.faults.step(target.pid);
        if signature() != Some(target.signature) {
            return Err(InjectFailure::Later);
        }
        let registers = undisturbed(tracee, target)?;
        let instruction =
            instruction(target.pid, &registers).ok_or(InjectFailure::Unfit("no system call instruction found"))?;
        let mask = tracee.signal_mask()?;
        tracee.follow_clones()?;
        tracee.set_signal_mask(u64::MAX)?;
        let remote = InjectedProcess { tracee, pid: target.pid, instruction, registers, faults: self.faults };
        let held = HeldThread { remote, mask };
        let planted = self.plant_by(&held.remote, target);
        held.restore()?;
        planted
    }

    fn plant_by(&self, remote: &InjectedProcess<'_>, target: InjectTarget) -> Result<Planted, InjectFailure> {
        let inherited = target.inherited.is_some();
        let mut area = target.inherited.map(|(_, area)| area);
        let mut tid_word = None;
        let listed = trace::robust_list(target.tid).is_ok_and(|head| head != 0);
        if !listed && !inherited {
            // A C library would keep robust lists. Without them the kernel is asked where it clears
            // the words of the program's threads.
            let made = remote.reserve_area()?;
            area = Some(made);
            tid_word = remote.tid_word(made + HEADER + PAGE);
            if tid_word.is_none() {
                remote.release_area(made);
                return Err(InjectFailure::Unfit("the kernel does not tell where its threads' words are"));
            }
        }
        match remote.clone_thread() {
            Ok(newborn) => {
                let words = match tid_word {
                    _ if listed => Words::Listed,
                    Some(word) if word != 0 => Words::One,
                    _ => Words::Unknown,
                };
                Ok(Planted { newborn, area, tid_word, words, instruction: remote.instruction })
            }
            Err(failure) => {
                if let (Some(area), false) = (area, inherited) {
                    remote.release_area(area);
                }
                Err(failure)
            }
        }
    }

    /// Prepares the agent's memory and socket through the new thread, and releases it at the
    /// agent's entry. After a failure all that was made is removed again.
    fn furnish(&self, target: InjectTarget, planted: Planted, stopped: Duration) -> Result<Brought, InjectFailure> {
        let newborn = &planted.newborn;
        match newborn.wait() {
            Stop::Asked => {}
            _ => return Err(InjectFailure::Gone),
        }
        let registers = newborn.registers()?;
        newborn.set_signal_mask(u64::MAX)?;
        let remote = InjectedProcess {
            tracee: newborn,
            pid: target.pid,
            instruction: planted.instruction,
            registers,
            faults: self.faults,
        };
        let mut made = Made { area: planted.area.filter(|_| target.inherited.is_none()), image: None };
        match self.settle(&remote, target, &planted, &mut made) {
            Ok(socket) => Ok(Brought { socket, stopped, words: planted.words }),
            Err(failure) => {
                remote.withdraw(&made, self.layout.span);
                Err(failure)
            }
        }
    }

    fn settle(
        &self,
        remote: &InjectedProcess<'_>,
        target: InjectTarget,
        planted: &Planted,
        made: &mut Made,
    ) -> Result<MessageSocket, InjectFailure> {
        remote.call("close_range", number::CLOSE_RANGE, [0, u64::from(u32::MAX), 0, 0, 0, 0])?;
        let area = match planted.area {
            Some(area) => area,
            None => remote.reserve_area()?,
        };
        made.area = Some(area).filter(|_| target.inherited.is_none());
        if let Some(word) = planted.tid_word {
            remote.write(area + TID_WORD, &word.to_ne_bytes())?;
        }
        // The agent's stack serves as scratch memory until the agent runs on it.
        let scratch = area + STACK_TOP - PAGE;
        let (near, socket) = remote.connect(scratch)?;
        let base = match target.inherited {
            Some((base, _)) => base,
            None => self.map_image(remote, scratch, (near, &socket), made)?,
        };
        let inherited = u64::from(target.inherited.is_some());
        let start = Registers {
            rip: base + self.layout.entry,
            rsp: area + STACK_TOP,
            rdi: area | inherited,
            rsi: near,
            rax: 0,
            orig_rax: u64::MAX,
            ..remote.registers
        };
        self.faults.step(target.pid);
        remote.tracee.set_registers(&start)?;
        remote.tracee.detach()?;
        Ok(socket)
    }

    /// Maps the image as a dynamic loader would; returns its base.
    fn map_image(
        &self,
        remote: &InjectedProcess<'_>,
        scratch: u64,
        (near, socket): (u64, &MessageSocket),
        made: &mut Made,
    ) -> Result<u64, InjectFailure> {
        const RESERVED: u64 = 0x4022;
        const PRIVATE_FIXED: u64 = 0x12;
        const WRITABLE: u64 = 2;
        socket.send(&[0], &[self.image])?;
        let fd = remote.receive_descriptor(near, scratch)?;
        let base = remote.call("mmap", number::MMAP, [0, self.layout.span, 0, RESERVED, u64::MAX, 0])?;
        made.image = Some(base);
        for segment in &self.layout.segments {
            let place = base + segment.address;
            let arguments = [place, segment.length, segment.protection, PRIVATE_FIXED, fd, segment.offset];
            remote.call("mmap", number::MMAP, arguments)?;
            if segment.protection & WRITABLE != 0 {
                remote.write(place, &self.layout.content(segment, base))?;
            }
        }
        remote.call("close", number::CLOSE, [fd, 0, 0, 0, 0, 0])?;
        Ok(base)
    }
}

/// The new thread, and facts about the program that were found on the way.
struct Planted {
    newborn: Tracee,
    area: Option<u64>,
    tid_word: Option<u64>,
    words: Words,
    instruction: u64,
}

/// Mappings to remove again if the agent does not start.
#[derive(Default)]
struct Made {
    area: Option<u64>,
    image: Option<u64>,
}

impl HeldThread<'_> {
    /// Restores the thread's registers and signal mask, at a stop after which the kernel continues
    /// an interrupted call.
    fn restore(&self) -> Result<(), InjectFailure> {
        let tracee = self.remote.tracee;
        tracee.interrupt()?;
        loop {
            tracee.go_on(0)?;
            match tracee.wait() {
                Stop::Gone => return Err(InjectFailure::Gone),
                Stop::Asked | Stop::Group(_) => break,
                _ => {}
            }
        }
        self.remote.faults.step(self.remote.pid);
        tracee.set_registers(&self.remote.registers)?;
        tracee.set_signal_mask(self.mask)?;
        Ok(())
    }
}

impl InjectedProcess<'_> {
    /// Makes the thread execute a system call; a negative result is a failure.
    fn call(&self, name: &'static str, number: u64, arguments: [u64; 6]) -> Result<u64, InjectFailure> {
        let mut born = None;
        let result = self.execute(number, arguments, &mut born)?;
        if result < 0 { Err(InjectFailure::Refused(name, -result as i32)) } else { Ok(result as u64) }
    }

    /// Makes the thread execute a system call, and waits for it without a limit of time: there is
    /// always a stop, or an end, though a thread of a frozen cgroup can take long, and only this
    /// tracer can restore the thread's registers.
    fn execute(&self, number: u64, arguments: [u64; 6], born: &mut Option<Tracee>) -> Result<i64, InjectFailure> {
        if self.faults.step(self.pid) {
            return Ok(-i64::from(NO_MEMORY));
        }
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        let (rip, rax, orig_rax) = (self.instruction, number, u64::MAX);
        let registers = Registers { rip, rax, orig_rax, rdi, rsi, rdx, r10, r8, r9, ..self.registers };
        self.tracee.set_registers(&registers)?;
        let mut entered = false;
        loop {
            self.tracee.go_on_to_syscall()?;
            match self.tracee.wait() {
                Stop::Syscall if entered => return Ok(self.tracee.registers()?.rax as i64),
                Stop::Syscall => entered = true,
                Stop::Cloned => *born = Some(Tracee::born(self.tracee.newborn()?)),
                Stop::Gone | Stop::Signal(_) => return Err(InjectFailure::Gone),
                // A signal stops the process: the stop takes effect once the thread is released.
                Stop::Asked | Stop::Group(_) | Stop::Other => {}
            }
        }
    }

    fn clone_thread(&self) -> Result<Tracee, InjectFailure> {
        let mut born = None;
        let result = self.execute(number::CLONE, [THREAD, 0, 0, 0, 0, 0], &mut born)?;
        if result < 0 {
            return Err(InjectFailure::Refused("clone", -result as i32));
        }
        born.ok_or(InjectFailure::Gone)
    }

    /// Reserves the area, as the agent's constructor does (`start.rs`).
    fn reserve_area(&self) -> Result<u64, InjectFailure> {
        const RESERVED: u64 = 0x4022;
        const DONT_DUMP: u64 = 16;
        let area = self.call("mmap", number::MMAP, [0, AREA_BYTES, 0, RESERVED, u64::MAX, 0])?;
        // A failure only makes core files larger.
        let _ = self.call("madvise", number::MADVISE, [area, AREA_BYTES, DONT_DUMP, 0, 0, 0]);
        let open = |from: u64, length: u64| self.call("mprotect", number::MPROTECT, [area + from, length, 3, 0, 0, 0]);
        let opened = open(HEADER, STACK_BYTES).and_then(|_| open(SA, AREA_BYTES - SA - PAGE));
        if opened.is_err() {
            self.release_area(area);
        }
        opened.map(|_| area)
    }

    fn release_area(&self, area: u64) {
        // A failure leaves a reservation behind, which uses no memory.
        let _ = self.call("munmap", number::MUNMAP, [area, AREA_BYTES, 0, 0, 0, 0]);
    }

    /// Address at which the kernel clears a word when this thread ends (0: nowhere); `None`: the
    /// kernel does not tell.
    fn tid_word(&self, scratch: u64) -> Option<u64> {
        const PR_GET_TID_ADDRESS: u64 = 40;
        self.call("prctl", number::PRCTL, [PR_GET_TID_ADDRESS, scratch, 0, 0, 0, 0]).ok()?;
        self.read::<8>(scratch).ok().map(u64::from_ne_bytes)
    }

    /// Makes a pair of sockets. The thread keeps one end; the engine fetches the other.
    fn connect(&self, scratch: u64) -> Result<(u64, MessageSocket), InjectFailure> {
        const UNIX: u64 = 1;
        const SEQPACKET_CLOEXEC: u64 = 5 | 0o2_000_000;
        self.call("socketpair", number::SOCKETPAIR, [UNIX, SEQPACKET_CLOEXEC, 0, scratch, 0, 0])?;
        let pair = self.read::<8>(scratch)?;
        let end = |at: usize| u32::from_ne_bytes(pair[at..at + 4].try_into().expect("four bytes"));
        let (near, far) = (end(0), end(4));
        let errno = |error: std::io::Error| InjectFailure::Refused("pidfd_getfd", error.raw_os_error().unwrap_or(0));
        let fetched = descriptor_of_thread(self.tracee.tid(), far as i32).map_err(errno)?;
        let (socket, _) = MessageSocket::adopt(fetched).map_err(errno)?;
        self.call("close", number::CLOSE, [u64::from(far), 0, 0, 0, 0, 0])?;
        Ok((u64::from(near), socket))
    }

    /// Makes the thread receive the descriptor that was sent on the socket.
    fn receive_descriptor(&self, near: u64, scratch: u64) -> Result<u64, InjectFailure> {
        const CLOEXEC_DONTWAIT: u64 = 0x4000_0000 | 0x40;
        let (vector, byte, control) = (scratch + 128, scratch + 192, scratch + 256);
        // struct msghdr: no name, one vector, control data of one descriptor.
        let header = [0, 0, vector, 1, control, 24, 0, 0];
        let words: Vec<u8> = header.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
        self.write(scratch, &words)?;
        self.write(vector, &[byte.to_ne_bytes(), 1u64.to_ne_bytes()].concat())?;
        self.call("recvmsg", number::RECVMSG, [near, scratch, CLOEXEC_DONTWAIT, 0, 0, 0])?;
        let received = self.read::<24>(control)?;
        if received[..8] != 20u64.to_ne_bytes() {
            return Err(InjectFailure::Refused("recvmsg", 0));
        }
        Ok(u64::from(u32::from_ne_bytes(received[16..20].try_into().expect("four bytes"))))
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), InjectFailure> {
        self.faults.step(self.pid);
        let written = trace::write_memory(self.tracee.tid(), address, bytes)?;
        if written == bytes.len() { Ok(()) } else { Err(InjectFailure::Gone) }
    }

    fn read<const N: usize>(&self, address: u64) -> Result<[u8; N], InjectFailure> {
        let mut bytes = [0; N];
        let range = RemoteRange { start: address, length: N as u64 };
        let read = vmread::read(self.tracee.tid(), &[range], &mut bytes)?;
        if read == N { Ok(bytes) } else { Err(InjectFailure::Gone) }
    }

    /// Removes the mappings that were made, and ends the new thread.
    fn withdraw(&self, made: &Made, span: u64) {
        if let Some(image) = made.image {
            let _ = self.call("munmap", number::MUNMAP, [image, span, 0, 0, 0, 0]);
        }
        if let Some(area) = made.area {
            self.release_area(area);
        }
        let (rip, rax, orig_rax) = (self.instruction, number::EXIT, u64::MAX);
        let end = Registers { rip, rax, orig_rax, rdi: 0, ..self.registers };
        // An error means that the thread is gone already.
        let _ = self.tracee.set_registers(&end).and_then(|()| self.tracee.detach());
    }
}

const NO_MEMORY: i32 = 12;

/// Waits for the first stop. Pending signals are delivered first.
fn arrive(tracee: &Tracee, patience: Duration) -> Result<(), InjectFailure> {
    loop {
        match tracee.wait_for_arrival(patience) {
            Some(Stop::Asked) => return Ok(()),
            Some(Stop::Signal(signal)) => tracee.go_on(signal)?,
            Some(Stop::Gone) => return Err(InjectFailure::Gone),
            Some(_) => {
                // A signal has stopped the process: it stays stopped after the detach.
                let _ = tracee.detach();
                return Err(InjectFailure::Later);
            }
            None => return Err(InjectFailure::Late(Tracee::born(tracee.tid()))),
        }
    }
}

/// The registers that a stopped thread is to have when it goes on. If the stop made its call return
/// EINTR, they begin the call anew, as the kernel does with other calls.
fn undisturbed(tracee: &Tracee, target: InjectTarget) -> Result<Registers, InjectFailure> {
    const INTERRUPTED: i64 = -4;
    const RESTART_UNLESS_HANDLED: i64 = -514;
    let mut registers = tracee.registers()?;
    if registers.cs != CODE_64 {
        return Err(InjectFailure::Unfit("it runs code that is not 64-bit"));
    }
    if tracee.dispatches_syscalls() {
        return Err(InjectFailure::Unfit("it catches its own system calls"));
    }
    if registers.orig_rax as i64 >= 0 {
        let result = registers.rax as i64;
        let arguments = [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9];
        if crate::inject::stoppable_thread::swaps_signal_mask(registers.orig_rax, arguments) {
            return Err(InjectFailure::Later);
        }
        if result == INTERRUPTED && !crate::inject::stoppable_thread::has_pending_signal(target.pid, target.tid) {
            registers.rax = RESTART_UNLESS_HANDLED as u64;
            tracee.set_registers(&registers)?;
        }
        return Ok(registers);
    }
    if let Some(sequences) = tracee.restartable_sequences() {
        // The word at 8 in struct rseq names the critical section that the thread is in. The kernel
        // would not abort that section any more after other code was executed in between.
        let mut section = [0u8; 8];
        let range = RemoteRange { start: sequences + 8, length: 8 };
        let read = vmread::read(target.tid, &[range], &mut section);
        if !read.is_ok_and(|n| n == 8) || u64::from_ne_bytes(section) != 0 {
            return Err(InjectFailure::Later);
        }
    }
    Ok(registers)
}

/// Address of a `syscall` instruction of the program: in its vdso, or just before the thread's
/// instruction pointer.
fn instruction(pid: u32, registers: &Registers) -> Option<u64> {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let read = |start: u64, bytes: &mut [u8]| {
        let range = RemoteRange { start, length: bytes.len() as u64 };
        vmread::read(pid, &[range], bytes).is_ok_and(|n| n == bytes.len())
    };
    let mut before = [0u8; 2];
    if registers.orig_rax as i64 >= 0 && read(registers.rip - 2, &mut before) && before == SYSCALL {
        return Some(registers.rip - 2);
    }
    in_vdso(pid)
}

/// Address of a `syscall` instruction in the program's vdso.
fn in_vdso(pid: u32) -> Option<u64> {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let read = |start: u64, bytes: &mut [u8]| {
        let range = RemoteRange { start, length: bytes.len() as u64 };
        vmread::read(pid, &[range], bytes).is_ok_and(|n| n == bytes.len())
    };
    let start = vdso(pid)?;
    let mut code = [0u8; 2 * PAGE as usize];
    let length = if read(start, &mut code) { code.len() } else { PAGE as usize };
    if !read(start, &mut code[..length]) {
        return None;
    }
    code[..length].windows(2).position(|bytes| bytes == SYSCALL).map(|at| start + at as u64)
}

/// The mappings of a process whose name begins with `name`.
fn mappings_of(pid: u32, name: &str) -> Vec<(u64, u64)> {
    let Ok(maps) = Maps::open(pid) else { return Vec::new() };
    let (mut found, mut at) = (Vec::new(), 0);
    while let Ok(Some(mapping)) = maps.covering_or_next(at) {
        if mapping.name.starts_with(name) {
            found.push((mapping.start, mapping.end));
        }
        at = mapping.end;
    }
    found
}

fn vdso(pid: u32) -> Option<u64> {
    const AT_SYSINFO_EHDR: u64 = 33;
    let bytes = std::fs::read(format!("/proc/{pid}/auxv")).ok()?;
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let found = words.as_chunks::<2>().0.iter().find(|[key, _]| *key == AT_SYSINFO_EHDR).map(|[_, value]| *value);
    let start = found?;
    // The program may have moved its vdso.
    let mapping = Maps::open(pid).ok()?.covering_or_next(start).ok()??;
    (mapping.start == start && mapping.name == "[vdso]").then_some(start)
}
