//! Example of a kind: `sparse:SIZE`, a device in memory whose slots are entries of a map. It exists
//! in tests only.
//!
//! It shows all that a kind of device needs: this file and its line in the registry. Only that this
//! line exists in tests alone differs from a real kind.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use uswap_core::PAGE_SIZE;
use uswap_core::util::size::Size;

use super::{DeviceKind, OpenRequest, PlaceForm, ShortForm};
use crate::device::{Device, DeviceClass, Errno, check_range};

const PREFIX: &str = "sparse:";

/// Maps of pages.
pub struct SparseKind;

/// A place of this kind.
#[derive(Debug, PartialEq)]
pub struct SparsePlace {
    text: String,
    bytes: u64,
}

impl DeviceKind for SparseKind {
    type Place = SparsePlace;

    const FORMS: &'static [PlaceForm] = &[PlaceForm {
        syntax: "sparse:SIZE",
        about: "A map of pages, for tests.",
        short: Some(ShortForm { written: "sparse:SIZE", noun: "a map of pages" }),
    }];
    const WITHOUT_SIZE: Option<&'static str> = Some("of a map of pages its own");
    const IS_MEMORY: bool = true;
    const EXAMPLE: &'static str = "sparse:4M";

    fn recognises(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    fn read(text: &str) -> Result<SparsePlace, String> {
        match text.trim_start_matches(PREFIX).parse() {
            Ok(Size::Bytes(bytes)) => Ok(SparsePlace { text: text.into(), bytes }),
            Ok(Size::Percent(_)) => Err("a map has a size in bytes".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn open(place: &SparsePlace, request: &OpenRequest<'_>) -> Result<Box<dyn Device>, String> {
        let bytes = request.size.map_or(place.bytes, |size| size.min(place.bytes));
        let slots = u32::try_from(bytes / PAGE_SIZE as u64).map_err(|_| format!("{} is too large", place.text))?;
        Ok(Box::new(SparseDevice { name: place.text.clone(), slots, pages: Mutex::default() }))
    }
}

type SparsePages = BTreeMap<u32, Vec<u8>>;

struct SparseDevice {
    name: String,
    slots: u32,
    pages: Mutex<SparsePages>,
}

impl SparseDevice {
    /// The pages, if `length` bytes from the start of slot `first` lie inside the device.
    fn pages(&self, first: u32, length: usize) -> Result<MutexGuard<'_, SparsePages>, Errno> {
        check_range(first, length, self.slots)?;
        Ok(self.pages.lock().expect("no panic under this lock"))
    }
}

impl Device for SparseDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn slots(&self) -> u32 {
        self.slots
    }

    fn class(&self) -> DeviceClass {
        DeviceClass { latency: Duration::from_micros(1), best_batch: 1 }
    }

    fn write(&self, first: u32, bytes: &[u8]) -> Result<(), Errno> {
        let mut pages = self.pages(first, bytes.len())?;
        pages.extend((first..).zip(bytes.chunks(PAGE_SIZE).map(<[u8]>::to_vec)));
        Ok(())
    }

    fn read(&self, first: u32, bytes: &mut [u8]) -> Result<(), Errno> {
        let pages = self.pages(first, bytes.len())?;
        for (slot, page) in (first..).zip(bytes.chunks_mut(PAGE_SIZE)) {
            match pages.get(&slot) {
                Some(kept) => page.copy_from_slice(kept),
                None => page.fill(0),
            }
        }
        Ok(())
    }

    fn discard(&self, first: u32, count: u32) -> Result<(), Errno> {
        self.pages(first, count as usize * PAGE_SIZE)?.retain(|slot, _| !(first..first + count).contains(slot));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::kinds::help;
    use crate::spec::{SwapSpec, absolute};

    fn read(text: &str) -> Result<SwapSpec, String> {
        text.parse()
    }

    #[test]
    fn it_parses_and_opens() {
        let device = read("sparse:4M,prio=3").and_then(|spec| spec.open(0)).expect("a device");
        assert_eq!((device.name(), device.slots()), ("sparse:4M", 1024));
        let device = read("sparse:4M,size=2M").and_then(|spec| spec.open(0)).expect("a device");
        assert_eq!(device.slots(), 512);
        assert_eq!(read("sparse:"), Err("\"\" is not a size: write it like 512M, 1.5GiB or 80%".into()));
        assert_eq!(read("sparse:5%"), Err("a map has a size in bytes".into()));
    }

    #[test]
    fn options_of_others_are_refused_with_the_usual_sentence() {
        for option in ["timeout=5", "connections=2"] {
            let refused = read(&format!("sparse:4M,{option}"));
            assert_eq!(refused, Err("timeout= and connections= are for NBD servers".into()));
        }
        read("sparse:4M,timeout=5,mirror=nbd://there/swap").expect("an option of the other half");
    }

    #[test]
    fn it_is_one_half_of_a_mirror() {
        let device = read("sparse:4M,mirror=ram").and_then(|spec| spec.open(8 << 20)).expect("a device");
        assert_eq!((device.name(), device.slots()), ("sparse:4M,mirror=ram", 1024));
        assert_eq!(read("sparse:4M,mirror=sparse:4M"), Err("a mirror has two different places".into()));
    }

    #[test]
    fn help_names_it_and_other_directories_leave_it() {
        assert!(help::written_places().ends_with(", ram, or sparse:SIZE"), "{}", help::written_places());
        assert!(help::places_as_things().ends_with(", ram, or a map of pages"), "{}", help::places_as_things());
        let entry = ("sparse:SIZE".into(), "A map of pages, for tests.".into());
        let entries = help::manual_entries("as usual");
        assert!(entries.contains(&entry));
        assert!(entries.iter().any(|(_, about)| about.ends_with("; of a map of pages its own).")), "{entries:?}");
        assert_eq!(absolute("a,mirror=sparse:4M", "/here".as_ref()), "/here/a,mirror=sparse:4M");
    }
}
