//! The list of threads beside its writer. Apart from it, since the agent compiles that without std.

use crate::thread_list::{MAX_HEADS, ThreadList};

fn read(list: &ThreadList) -> Option<Vec<u64>> {
    let mut heads = Vec::new();
    list.read(|head| heads.push(head)).then_some(heads)
}

#[test]
fn only_a_whole_list_is_believed() {
    let list = ThreadList::empty();
    assert_eq!(read(&list), None, "nothing was written yet");
    list.write([7, 9].into_iter());
    assert_eq!(read(&list), Some(vec![7, 9]));
    list.write(std::iter::empty());
    assert_eq!(read(&list), Some(vec![]));
    list.write((0..MAX_HEADS as u64 + 1).map(|head| head * 64));
    assert_eq!(read(&list), None, "one did not fit");
}

#[test]
fn what_is_read_beside_a_writer_is_one_list() {
    let list = ThreadList::empty();
    std::thread::scope(|scope| {
        scope.spawn(|| (1..20_000u64).for_each(|round| list.write((0..round % 40).map(|_| round))));
        for _ in 0..20_000 {
            let Some(heads) = read(&list) else { continue };
            let one = heads.first().copied().unwrap_or_default();
            assert!(heads.iter().all(|head| *head == one) && heads.len() as u64 == one % 40, "{heads:?}");
        }
    });
}
