//! The readers: bring pages from devices. They block, so the owners do not.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use uswap_core::{PAGE_SIZE, PageBuf};
use uswap_store::{ObjectId, Scratch};

use crate::shared::{Message, ReadDone, ReadJob, Shared};

/// Serves jobs until the sender is gone.
pub fn run(shared: &Arc<Shared>, jobs: &Arc<Mutex<Receiver<ReadJob>>>) {
    let mut scratch = Scratch::new();
    loop {
        let job = jobs.lock().expect("jobs").recv();
        let Ok(job) = job else { return };
        let objects: Vec<ObjectId> = job.pages.iter().map(|(_, object)| *object).collect();
        let mut bytes: Vec<Box<PageBuf>> = objects.iter().map(|_| Box::new([0; PAGE_SIZE])).collect();
        let mut results = Vec::with_capacity(objects.len());
        shared.store.load_many_blocking(&objects, &mut bytes, &mut results, &mut scratch);
        let pages = job.pages.iter().zip(bytes.into_iter().zip(results));
        let pages = pages.map(|((address, object), (page, result))| (*address, *object, result.map(|()| page)));
        let done = ReadDone { space: job.space, pages: pages.collect(), since: job.since };
        shared.mailboxes[job.owner].post(Message::Read(done));
    }
}
