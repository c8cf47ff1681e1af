//! The layout of the agent's area: one reservation of address space per process, inherited by fork.
//!
//! ```text
//! guard | stack and header | guard | SA: 64 x TRAYS pages | identity | proofs | notice | SB: 64 x TRAYS pages | nonce | guard
//! ```
//! - **SA** is registered on the event userfaultfd, so that a MOVE out of the program passes that
//!   fd's fence.
//! - **SB** is registered on the second userfaultfd, which has no events and answers a missing page
//!   with SIGBUS (EFAULT to `process_vm_readv`): the engine reads staged pages there, and the agent
//!   drops them there.
//! - the **identity** page is never present in a parent; the engine installs it in a fork child,
//!   and the child's agent learns from it which of the engine's spaces it belongs to.
//! - the **proofs** are pages that are missing until the engine installs one: the process that sees
//!   the page appear in its memory has the address space of that userfaultfd.
//! - the **notice** page is registered like SA and never present: dropping it sends an event, and
//!   the place of that event among all others tells the engine when the agent's hooks left a note.
//!   A read of it is the question of a program that is about to fork whether there is room.
//! - the **nonce** page is read together with every staged page: it proves that the reader looks at
//!   the memory of the image that it means.
//!
//! The guards keep the kernel from merging the area with mappings of the program.

/// Bytes in a page.
pub const PAGE: u64 = 4096;
/// Slots (pages) in a tray: at most this many pages move between one entry of the gate and the
/// next.
pub const TRAY_PAGES: u32 = 64;
/// Trays in a staging half.
pub const TRAYS: u32 = 512;
/// Slots in a staging half.
pub const SLOTS: u32 = TRAYS * TRAY_PAGES;

/// Bytes of stack and header together.
pub const STACK_BYTES: u64 = 32 * PAGE;
/// Offset of the header page in the area: the lowest page above the first guard.
pub const HEADER: u64 = PAGE;
/// In the header: a word that is set when the engine has answered the agent. The program's first
/// thread waits for it before the program begins.
pub const ANSWERED: u64 = HEADER;
/// Offset just above the stack, which grows down towards the header.
pub const STACK_TOP: u64 = PAGE + STACK_BYTES;
/// Offset of SA.
pub const SA: u64 = STACK_TOP + PAGE;
/// Offset of the identity page.
pub const IDENTITY: u64 = SA + SLOTS as u64 * PAGE;
/// Pages that can serve as proofs. A fork child inherits those pages of its parent that were not
/// dropped.
pub const PROOF_PAGES: u64 = 63;
/// Offset of the proofs.
pub const PROOFS: u64 = IDENTITY + PAGE;
/// Offset of the notice page.
pub const NOTICE: u64 = PROOFS + PROOF_PAGES * PAGE;
/// Offset of SB.
pub const SB: u64 = NOTICE + PAGE;
/// Offset of the nonce page.
pub const NONCE: u64 = SB + SLOTS as u64 * PAGE;
/// Bytes of the whole area.
pub const AREA_BYTES: u64 = NONCE + 2 * PAGE;

/// Offset in the header page of the address of a word, outside of all stacks, that the kernel
/// clears when a thread ends (0: no such word is known). Used in programs that the engine injected
/// the agent into.
pub const TID_WORD: u64 = HEADER + 32;

/// Bytes before and after the head of a thread's robust list that belong to its control block: a
/// generous estimate for glibc and musl.
pub const CONTROL_BLOCK: (u64, u64) = (1024, 3072);

/// Offset of a word of the header page, for tests: not 0 if the hooks announce nothing.
pub const SILENT_HOOKS: u64 = HEADER + 40;

/// Notes that the header page has room for; they form a ring.
pub const NOTES: usize = 128;
/// Offset of the count of notes ever left, in the header page.
pub const NOTES_COUNT: u64 = HEADER + 64;
/// Offset of the first note.
pub const NOTES_START: u64 = HEADER + 128;
/// Bytes of a note: start, length, kind (8 bits) and number.
pub const NOTE_BYTES: u64 = 24;
/// Note kind: the program asked for MADV_WIPEONFORK on the range.
pub const NOTE_WIPE_ON_FORK: u64 = 1;
/// Note kind: MADV_KEEPONFORK.
pub const NOTE_KEEP_ON_FORK: u64 = 2;
/// Note kind: MADV_DONTFORK.
pub const NOTE_DONT_FORK: u64 = 3;
/// Note kind: MADV_DOFORK.
pub const NOTE_DO_FORK: u64 = 4;
/// Added to the kind once the program's call has been made.
pub const NOTE_DONE: u64 = 0x80;

const _: () = assert!(128 + NOTES as u64 * NOTE_BYTES <= PAGE);
