//! Requests of the kernel, read from their bytes.
//!
//! A request is a header of 40 bytes, a record of fixed size that its operation has, and names or
//! data. Numbers are in the byte order of the machine. The kernel is trusted to send what its
//! version says; a request that is too short is answered with EIO.

use std::ffi::CStr;

/// Length of the header in bytes.
const HEADER: usize = 40;

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum FuseOperation {
    /// Finds a name in a folder.
    Lookup = 1,
    /// Some finds of a file are forgotten.
    Forget = 2,
    /// The metadata of a file.
    GetAttributes = 3,
    /// Changes them.
    SetAttributes = 4,
    /// The target of a symbolic link.
    ReadLink = 5,
    /// Makes a symbolic link.
    SymbolicLink = 6,
    /// Makes a file.
    MakeNode = 8,
    /// Makes a folder.
    MakeFolder = 9,
    /// Removes a name.
    Unlink = 10,
    /// Removes a folder.
    RemoveFolder = 11,
    /// Renames.
    Rename = 12,
    /// Makes another name.
    Link = 13,
    /// Opens a file.
    Open = 14,
    /// Reads from it.
    Read = 15,
    /// Writes to it.
    Write = 16,
    /// The figures of the file system.
    Volume = 17,
    /// The last descriptor was closed.
    Release = 18,
    /// fsync(2) and fdatasync(2).
    Sync = 20,
    /// Sets an extended attribute.
    SetXattr = 21,
    /// Reads one.
    GetXattr = 22,
    /// Lists their names.
    ListXattr = 23,
    /// Removes one.
    RemoveXattr = 24,
    /// A descriptor was closed.
    Flush = 25,
    /// The first request.
    Init = 26,
    /// Opens a folder.
    OpenFolder = 27,
    /// Reads a folder.
    ReadFolder = 28,
    /// The last descriptor of a folder was closed.
    ReleaseFolder = 29,
    /// fsync(2) of a folder.
    SyncFolder = 30,
    /// Makes a file and opens it.
    Create = 35,
    /// A request is not waited for any more.
    Interrupt = 36,
    /// The last request.
    Destroy = 38,
    /// ioctl(2).
    Ioctl = 39,
    /// Several times `Forget`.
    ForgetMany = 42,
    /// fallocate(2).
    Allocate = 43,
    /// Reads a folder and looks its entries up.
    ReadFolderPlus = 44,
    /// Renames with flags.
    RenameWithFlags = 45,
    /// lseek(2) to data and holes.
    Seek = 46,
    /// copy_file_range(2).
    CopyRange = 47,
    /// syncfs(2).
    SyncVolume = 50,
    /// Makes a file without a name (O_TMPFILE) and opens it.
    CreateUnnamed = 51,
}

impl FuseOperation {
    const ALL: [Self; 40] = [
        Self::Lookup,
        Self::Forget,
        Self::GetAttributes,
        Self::SetAttributes,
        Self::ReadLink,
        Self::SymbolicLink,
        Self::MakeNode,
        Self::MakeFolder,
        Self::Unlink,
        Self::RemoveFolder,
        Self::Rename,
        Self::Link,
        Self::Open,
        Self::Read,
        Self::Write,
        Self::Volume,
        Self::Release,
        Self::Sync,
        Self::SetXattr,
        Self::GetXattr,
        Self::ListXattr,
        Self::RemoveXattr,
        Self::Flush,
        Self::Init,
        Self::OpenFolder,
        Self::ReadFolder,
        Self::ReleaseFolder,
        Self::SyncFolder,
        Self::Create,
        Self::Interrupt,
        Self::Destroy,
        Self::Ioctl,
        Self::ForgetMany,
        Self::Allocate,
        Self::ReadFolderPlus,
        Self::RenameWithFlags,
        Self::Seek,
        Self::CopyRange,
        Self::SyncVolume,
        Self::CreateUnnamed,
    ];

    fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| *operation as u32 == number)
    }

    /// Whether the kernel waits for an answer.
    pub fn is_answered(self) -> bool {
        !matches!(self, Self::Forget | Self::ForgetMany | Self::Interrupt)
    }
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct FuseRequest<'a> {
    /// `None`: one that this file system does not know.
    pub operation: Option<FuseOperation>,
    /// The number that the answer must have.
    pub unique: u64,
    /// The file that it is about.
    pub node: u64,
    /// The user and group who ask.
    pub user: u32,
    /// See `user`.
    pub group: u32,
    /// The bytes behind the header.
    pub body: Body<'a>,
}

impl<'a> FuseRequest<'a> {
    /// The request in these bytes; `None`: they are none.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut head = Body(bytes.get(..HEADER)?);
        let (_length, operation, unique, node) = (head.u32()?, head.u32()?, head.u64()?, head.u64()?);
        let (user, group) = (head.u32()?, head.u32()?);
        let operation = FuseOperation::of(operation);
        Some(Self { operation, unique, node, user, group, body: Body(&bytes[HEADER..]) })
    }
}

/// Bytes that are read from their beginning. All methods give `None` where they end too early.
#[derive(Clone, Copy, Debug)]
pub struct Body<'a>(pub &'a [u8]);

impl<'a> Body<'a> {
    /// The next bytes.
    pub fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// The next 4 bytes.
    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.bytes(4)?.try_into().ok()?))
    }

    /// The next 8 bytes.
    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.bytes(8)?.try_into().ok()?))
    }

    /// The next name, which a zero byte ends.
    pub fn name(&mut self) -> Option<&'a CStr> {
        let name = CStr::from_bytes_until_nul(self.0).ok()?;
        self.0 = &self.0[name.count_bytes() + 1..];
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_and_a_short_one_refused() {
        let mut bytes = Vec::new();
        bytes.extend(50u32.to_ne_bytes());
        bytes.extend(1u32.to_ne_bytes());
        bytes.extend(7u64.to_ne_bytes());
        bytes.extend(1u64.to_ne_bytes());
        [1000u32, 100, 4711, 0].iter().for_each(|number| bytes.extend(number.to_ne_bytes()));
        bytes.extend(b"a name\0rest\0");
        let mut request = FuseRequest::read(&bytes).expect("a request");
        assert_eq!((request.operation, request.unique, request.node), (Some(FuseOperation::Lookup), 7, 1));
        assert_eq!((request.user, request.group), (1000, 100));
        assert_eq!(request.body.name(), Some(c"a name"));
        assert_eq!(request.body.name(), Some(c"rest"));
        assert_eq!((request.body.name(), request.body.u32()), (None, None));
        assert!(FuseRequest::read(&bytes[..39]).is_none());
        assert!(FuseOperation::ALL.iter().all(|operation| FuseOperation::of(*operation as u32) == Some(*operation)));
    }
}
