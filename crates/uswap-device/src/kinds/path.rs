//! A file or a block device, named by its path: the kind of every place that no other kind
//! recognises.

use std::path::{Path, PathBuf};

use uswap_core::util::size::Size;

use super::{DeviceKind, OpenRequest, PlaceForm, ShortForm};
use crate::device::Device;
use crate::file::FileDevice;
use crate::open::IoBackend;

/// Files and block devices.
pub struct PathKind;

impl DeviceKind for PathKind {
    type Place = PathBuf;

    const FORMS: &'static [PlaceForm] = &[
        PlaceForm {
            syntax: "PATH",
            about: "A file; made if it is missing. A file that holds foreign data is refused.",
            short: Some(ShortForm { written: "PATH", noun: "a file (made if missing)" }),
        },
        PlaceForm {
            syntax: "/dev/...",
            about: "A block device. Its content is lost.",
            short: Some(ShortForm { written: "a block device", noun: "a block device" }),
        },
    ];
    const EXAMPLE: &'static str = "swap";

    fn recognises(_: &str) -> bool {
        true
    }

    fn read(text: &str) -> Result<PathBuf, String> {
        let path = Path::new(text);
        if path.is_dir() {
            return Err("that is a directory; name a file in it, or a block device".into());
        }
        if is_meant_as_size(text) {
            return Err(format!(
                "that is a size; a place comes first: PATH,size={text} (a file of this name is ./{text})"
            ));
        }
        Ok(path.into())
    }

    fn absolute(text: &str, directory: &Path) -> String {
        directory.join(text).display().to_string()
    }

    fn open(path: &PathBuf, request: &OpenRequest<'_>) -> Result<Box<dyn Device>, String> {
        let device = FileDevice::open(path, Some(request.size_or_usual()), IoBackend::Auto);
        Ok(Box::new(device.map_err(|error| error.to_string())?))
    }
}

/// Whether the text is a size with its unit and no file of that name exists.
fn is_meant_as_size(text: &str) -> bool {
    text.parse::<Size>().is_ok() && text.ends_with(|c: char| c.is_alphabetic() || c == '%') && !Path::new(text).exists()
}
