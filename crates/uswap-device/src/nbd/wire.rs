//! The bytes of the protocol: constants and the messages of the client.
//!
//! Names and numbers are those of the NBD project's `doc/proto.md`. All integers are big-endian.

/// First eight bytes from a server: "NBDMAGIC".
pub const GREETING: u64 = 0x4e42_444d_4147_4943;
/// Next eight bytes from a newstyle server, and the first eight bytes of each option: "IHAVEOPT".
pub const OPTION: u64 = 0x4948_4156_454f_5054;
/// Next eight bytes from an oldstyle server.
pub const OLD_STYLE: u64 = 0x0000_4202_8186_1253;
/// The first eight bytes of each reply to an option.
pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;

/// Handshake flag, both ways: fixed newstyle.
pub const FIXED_NEWSTYLE: u16 = 1;
/// Handshake flag, both ways: no 124 zero bytes after NBD_OPT_EXPORT_NAME.
pub const NO_ZEROES: u16 = 2;

/// Options.
pub mod option {
    pub const STARTTLS: u32 = 5;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
}

/// Replies to options. Errors have the highest bit.
pub mod reply {
    pub const ACK: u32 = 1;
    pub const INFO: u32 = 3;
    pub const ERROR: u32 = 1 << 31;
    pub const UNSUPPORTED: u32 = ERROR + 1;
    pub const POLICY: u32 = ERROR + 2;
    pub const TLS_REQUIRED: u32 = ERROR + 5;
    pub const UNKNOWN: u32 = ERROR + 6;
}

/// Kinds of information about an export.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what the export can do.
pub mod flag {
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// The types of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum NbdCommand {
    /// Read bytes from the export.
    Read = 0,
    /// Write bytes to the export.
    Write = 1,
    /// The client disconnects; there is no reply.
    Disconnect = 2,
    /// The bytes are no longer needed.
    Trim = 4,
    /// The bytes become zero; the server may make a hole.
    WriteZeroes = 6,
}

/// Length in bytes of a request without its payload.
pub const REQUEST: usize = 28;

/// The header of a request.
pub fn request(command: NbdCommand, cookie: u64, offset: u64, length: u32) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    bytes[..4].copy_from_slice(&0x2560_9513u32.to_be_bytes());
    bytes[6..8].copy_from_slice(&(command as u16).to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// An option with its data.
pub fn option_request(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// The data of NBD_OPT_GO: the name of the export, and the request for its block sizes.
pub fn go(export: &str) -> Vec<u8> {
    let mut data = (export.len() as u32).to_be_bytes().to_vec();
    data.extend(export.as_bytes());
    data.extend(1u16.to_be_bytes());
    data.extend(info::BLOCK_SIZE.to_be_bytes());
    data
}

/// The big-endian integers at the start of `bytes`.
pub fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes(bytes[..2].try_into().expect("two bytes"))
}

/// See [`be16`].
pub fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"))
}

/// See [`be16`].
pub fn be64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_as_the_protocol_says() {
        let bytes = request(NbdCommand::Trim, 0x0102_0304_0506_0708, 0x1000, 0x2000);
        let expected =
            [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 4, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0x20, 0];
        assert_eq!(bytes, expected);
        assert_eq!(go("ab"), [0, 0, 0, 2, b'a', b'b', 0, 1, 0, 3]);
        assert_eq!(&option_request(option::GO, &[9])[..], b"IHAVEOPT\0\0\0\x07\0\0\0\x01\x09");
    }
}
