//! Figures of the cache, for reports.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use uswap_core::PAGE;

use crate::OVERHEAD;
use crate::cache::FileCache;
use crate::cache::pages::CacheCounts;
use crate::cache::store_below::StoreBelow;

/// Counts for reports. Amounts are pages unless their names say otherwise.
#[derive(Default, Debug)]
pub struct CacheCounters {
    /// Pages that were asked for.
    pub asked: AtomicU64,
    /// Of these: found in memory.
    pub hits: AtomicU64,
    /// Of these: found in the pool or on a device.
    pub store_hits: AtomicU64,
    /// Pages read from the source, those that were read ahead included.
    pub source_reads: AtomicU64,
    /// Pages that the store could not give back; they were read from the source.
    pub store_errors: AtomicU64,
    /// Pages that an earlier mount had kept.
    pub found: AtomicU64,
    /// Pages that the next mount would find.
    pub kept: AtomicU64,
    /// Files of which a check found that others had changed them.
    pub invalidations: AtomicU64,
    /// Pages that were written to the source.
    pub written: AtomicU64,
}

/// Memory in use, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryUse {
    /// Frames of pages, those included that wait for their next use.
    pub frames: u64,
    /// Pool and its tables.
    pub below: u64,
    /// Tables of the pages.
    pub tables: u64,
    /// Names of the files that the kernel knows.
    pub names: u64,
}

impl MemoryUse {
    /// All of it, with what the process needs beside.
    pub fn used(&self) -> u64 {
        self.frames + self.below + self.tables + self.names + OVERHEAD
    }
}

/// Figures of the pages, now and so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageFigures {
    /// Files of which something is known.
    pub files: u64,
    /// Pages in memory.
    pub resident: u64,
    /// Of these, active ones.
    pub active: u64,
    /// Pages in the store.
    pub stored: u64,
    /// Shadows that are remembered.
    pub history: u64,
    /// Memory of the tables in bytes.
    pub table_bytes: u64,
    /// Counts of what happened.
    pub counts: CacheCounts,
}

/// Figures of a group of files. Amounts are pages, in memory unless their names say otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupNumbers {
    /// With the groups below it, now and at most.
    pub used: u64,
    /// See `used`.
    pub peak: u64,
    /// Its limit, if it has one of its own.
    pub limit: Option<u64>,
    /// Its own pages in the store.
    pub stored: u64,
    /// Its own files of which something is known.
    pub files: u64,
}

impl FileCache {
    /// The memory in use.
    pub fn memory(&self) -> MemoryUse {
        let below = self.below.as_ref().map_or(0, StoreBelow::memory);
        let tables = self.lock().pages.table_bytes();
        let names = self.names.load(Relaxed);
        MemoryUse { frames: u64::from(self.frames.with_memory()) * PAGE, below, tables, names }
    }

    /// Figures of the pages.
    pub fn page_figures(&self) -> PageFigures {
        let tables = self.lock();
        let pages = &tables.pages;
        PageFigures {
            files: tables.files.len() as u64,
            resident: pages.resident(),
            active: pages.active(),
            stored: pages.stored(),
            history: pages.history(),
            table_bytes: pages.table_bytes(),
            counts: pages.counts(),
        }
    }
}
