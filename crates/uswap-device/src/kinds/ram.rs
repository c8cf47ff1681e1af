//! Uncompressed memory of this process, for experiments.

use uswap_core::PAGE_SIZE;
use uswap_core::util::size::human;

use super::{DeviceKind, OpenRequest, PlaceForm, ShortForm};
use crate::device::Device;
use crate::ram::RamDevice;

/// The text of the place, which is also the name of the device.
const RAM: &str = "ram";
/// Minimum size in bytes, the same as for all other kinds: a cluster of slots.
const MIN_BYTES: u64 = 2 << 20;

/// Memory.
pub struct RamKind;

impl DeviceKind for RamKind {
    type Place = ();

    const FORMS: &'static [PlaceForm] = &[PlaceForm {
        syntax: RAM,
        about: "Uncompressed memory, for experiments.",
        short: Some(ShortForm { written: RAM, noun: RAM }),
    }];
    const IS_MEMORY: bool = true;
    const EXAMPLE: &'static str = RAM;

    fn recognises(text: &str) -> bool {
        text == RAM
    }

    fn read(_: &str) -> Result<(), String> {
        Ok(())
    }

    fn open((): &(), request: &OpenRequest<'_>) -> Result<Box<dyn Device>, String> {
        let size = request.size_or_usual();
        if size < MIN_BYTES {
            return Err(format!("{RAM} has room for less than {}", human(MIN_BYTES)));
        }
        let slots = (size / PAGE_SIZE as u64).min(u64::from(u32::MAX)) as u32;
        Ok(Box::new(RamDevice::try_new(RAM, slots).map_err(|error| format!("{RAM}: {error}"))?))
    }
}
