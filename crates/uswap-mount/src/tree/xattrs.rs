//! Extended attributes. The source's own checks are those of the process; the kernel has made those
//! of whoever asks.

use std::os::fd::AsFd;

use uswap_sys::fs::xattr;

use crate::fuse::reply::FuseAnswer;
use crate::fuse::request::FuseRequest;
use crate::fuse::session::Outcome;
use crate::tree::{RequestResult, SourceTree, done, short};

/// The longest value that the kernel takes.
const LONGEST: usize = 64 << 10;

impl SourceTree {
    pub(super) fn set_xattr(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let (length, flags) = (request.body.u32().ok_or_else(short)?, request.body.u32().ok_or_else(short)?);
        let name = request.body.name().ok_or_else(short)?;
        let value = request.body.bytes(length as usize).ok_or_else(short)?;
        let node = self.node(request.node)?;
        let status = uswap_sys::fs::inode::status(node.as_fd())?;
        self.with_new_stamp(node.as_fd(), &status, || xattr::set(node.as_fd(), name, value, flags))?;
        done()
    }

    pub(super) fn get_xattr(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let most = request.body.u32().ok_or_else(short)?;
        request.body.u32().ok_or_else(short)?;
        let name = request.body.name().ok_or_else(short)?;
        let node = self.node(request.node)?;
        let mut value = vec![0; (most as usize).min(LONGEST)];
        let length = xattr::get(node.as_fd(), name, &mut value)?;
        Ok(told(most, length, value))
    }

    pub(super) fn list_xattr(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let most = request.body.u32().ok_or_else(short)?;
        let node = self.node(request.node)?;
        let mut names = vec![0; (most as usize).min(LONGEST)];
        let length = xattr::list(node.as_fd(), &mut names)?;
        Ok(told(most, length, names))
    }

    pub(super) fn remove_xattr(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let name = request.body.name().ok_or_else(short)?;
        let node = self.node(request.node)?;
        let status = uswap_sys::fs::inode::status(node.as_fd())?;
        self.with_new_stamp(node.as_fd(), &status, || xattr::remove(node.as_fd(), name))?;
        done()
    }
}

/// The bytes, or their length if only that was asked for.
fn told(most: u32, length: usize, mut bytes: Vec<u8>) -> Outcome {
    if most == 0 {
        let mut answer = FuseAnswer::default();
        answer.u32(length as u32).u32(0);
        return Outcome::Answer(answer);
    }
    bytes.truncate(length);
    Outcome::Answer(FuseAnswer(bytes))
}
