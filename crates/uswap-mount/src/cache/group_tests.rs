//! Groups of files: who keeps memory when others need some.

use super::tests::{MadeFile, cache, key, pass};
use super::*;
use crate::cache::groups::GroupId;

const PAGES: u64 = 8192;

/// A file of that many pages.
fn file(pages: u64) -> MadeFile {
    MadeFile::of(vec![1; (pages * PAGE) as usize])
}

fn in_group(cache: &FileCache, number: u64, group: GroupId) {
    // A file is known from its first use on.
    cache.lock().files.entry(key(number)).or_default();
    cache.change_groups(&[(key(number), group)]);
}

fn used(cache: &FileCache, group: GroupId) -> u64 {
    cache.group_figures()[&group].used
}

#[test]
fn a_stream_displaces_pages_of_its_own_group_only() {
    let cache = cache(PAGES, None);
    let group = cache.add_group(GroupId::ROOT, None).expect("a group");
    let (set, stream) = (file(PAGES / 2), file(PAGES * 3));
    in_group(&cache, 2, group);
    // Read once, which makes it no working set yet: without groups the stream would flush it.
    pass(&cache, 1, &set);
    pass(&cache, 2, &stream);
    assert_eq!(pass(&cache, 1, &set), 0);
    cache.remove_group(group, GroupId::ROOT);
    pass(&cache, 3, &file(PAGES * 3));
    let lost = pass(&cache, 2, &stream);
    assert!(lost > PAGES * 2, "{lost}: in one group a stream does");
}

#[test]
fn a_group_is_held_to_its_limit_and_the_rest_is_free_for_others() {
    let cache = cache(PAGES, None);
    let group = cache.add_group(GroupId::ROOT, Some(1000)).expect("a group");
    let below = cache.add_group(group, Some(300)).expect("a group");
    let files = [file(900), file(900), file(PAGES - 2000)];
    in_group(&cache, 1, group);
    in_group(&cache, 2, below);
    for _ in 0..3 {
        (1..).zip(&files).for_each(|(number, file)| _ = pass(&cache, number, file));
    }
    assert!((250..=300).contains(&used(&cache, below)), "{}", used(&cache, below));
    assert!((900..=1000).contains(&used(&cache, group)), "{}", used(&cache, group));
    assert_eq!(pass(&cache, 3, &files[2]), 0, "the root has the rest");
    cache.limit_group(group, Some(500));
    assert!(used(&cache, group) <= 500 && used(&cache, below) <= 300);
    cache.limit_group(below, None);
    cache.limit_group(group, None);
    for _ in 0..4 {
        (1..).zip(&files[..2]).for_each(|(number, file)| _ = pass(&cache, number, file));
    }
    assert_eq!((pass(&cache, 1, &files[0]), pass(&cache, 2, &files[1])), (0, 0), "no limits any more");
}

/// The document's `wschange` across groups: what is not used any more makes room for what comes
/// back, in whatever group it is.
#[test]
fn memory_goes_from_a_group_that_is_not_used_to_one_that_is() {
    let cache = cache(PAGES, None);
    let groups = [0; 2].map(|_| cache.add_group(GroupId::ROOT, None).expect("a group"));
    let files = [file(PAGES * 3 / 4), file(PAGES * 3 / 4)];
    (1..).zip(groups).for_each(|(number, group)| in_group(&cache, number, group));
    for (number, file) in [(1, &files[0]), (2, &files[1]), (1, &files[0])] {
        let mut reads = 1;
        while pass(&cache, number, file) > 0 {
            reads += 1;
            assert!(reads <= 8, "file {number} is not cached after {reads} reads");
        }
        println!("file {number}: {} reads", reads - 1);
    }
}

/// Two groups whose files do not fit together: both keep a share, by what they use.
#[test]
fn groups_that_are_both_in_use_share_the_memory() {
    let cache = cache(PAGES, None);
    let groups = [0; 2].map(|_| cache.add_group(GroupId::ROOT, None).expect("a group"));
    (1..).zip(groups).for_each(|(number, group)| in_group(&cache, number, group));
    let files = [file(PAGES * 3 / 4), file(PAGES * 3 / 4)];
    for _ in 0..12 {
        for offset in (0..PAGES * 3 / 4).step_by(16) {
            for (number, file) in (1..).zip(&files) {
                cache.read((key(number), file), offset * PAGE, 16 << 12, |_, count| count).expect("a read");
            }
        }
    }
    let shares = groups.map(|group| used(&cache, group));
    println!("{shares:?} of {PAGES}");
    assert!(shares.iter().all(|share| *share > PAGES / 4), "{shares:?}");
}

/// A file that moves takes its pages along, and both groups go on with the right lists.
#[test]
fn a_file_that_moves_takes_its_pages_along() {
    let cache = cache(1000, None);
    let groups = [0; 2].map(|_| cache.add_group(GroupId::ROOT, None).expect("a group"));
    let files = [file(300), file(300)];
    (1..).zip(&files).for_each(|(number, file)| _ = pass(&cache, number, file));
    for round in 0..6 {
        in_group(&cache, 1, groups[round % 2]);
        in_group(&cache, 2, groups[round / 2 % 2]);
        cache.lock().pages.check();
        assert_eq!((pass(&cache, 1, &files[0]), pass(&cache, 2, &files[1])), (0, 0));
    }
    in_group(&cache, 1, groups[0]);
    assert!(used(&cache, groups[0]) >= 300);
    cache.limit_group(groups[0], Some(100));
    cache.lock().pages.check();
    assert_eq!(used(&cache, groups[0]), 100);
    cache.remove_group(groups[0], GroupId::ROOT);
    cache.lock().pages.check();
}
