//! The tree compared with a plain model of it: after any orders and charges, the sums of the groups
//! are those of their processes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const THREADS: i64 = 2;

/// A tree with these groups.
fn tree(paths: &[&str]) -> GroupTree {
    let mut tree = GroupTree::default();
    paths.iter().for_each(|path| {
        tree.create(path).expect(path);
    });
    tree
}

fn used(tree: &GroupTree, path: &str) -> i64 {
    tree.group(tree.find(path).expect(path)).used()
}

#[test]
fn charges_go_up_to_the_root_and_nowhere_else() {
    let mut tree = tree(&["a", "a/b", "c"]);
    let account = tree.admit(10, &[]);
    tree.move_process(10, "a/b").expect("moved");
    tree.charge(&account, 5, 2);
    assert_eq!(["a/b", "a", "/", "c"].map(|path| used(&tree, path)), [5, 5, 5, 0]);
    assert!(
        tree.is_within(&account, tree.find("a").expect("a")) && !tree.is_within(&account, tree.find("c").expect("c"))
    );
}

/// The kernel's leak: a page is swapped out in A, its process moves to B, A is removed, and an
/// order from C brings the page in.
#[test]
fn what_comes_back_is_charged_to_the_group_its_process_is_in_now() {
    let mut tree = tree(&["a", "b", "c"]);
    let (owner, caller) = (tree.admit(1, &[]), tree.admit(2, &[]));
    tree.move_process(1, "a").expect("moved");
    tree.move_process(2, "c").expect("moved");
    tree.charge(&owner, 100, 0);
    tree.charge(&owner, -60, 0);
    tree.move_process(1, "b").expect("moved");
    assert_eq!(tree.remove("a"), Ok(0));
    tree.charge(&owner, 60, 0);
    assert_eq!((used(&tree, "b"), used(&tree, "c"), used(&tree, "/"), caller.used()), (100, 0, 100, 0));
}

#[test]
fn a_new_process_is_where_its_nearest_known_relative_is_or_was() {
    let mut tree = tree(&["a", "b"]);
    tree.admit(1, &[]);
    tree.admit(2, &[]);
    tree.move_process(1, "a").expect("moved");
    tree.move_process(2, "b").expect("moved");
    let group = |tree: &GroupTree, account: &Account| tree.group_of(account).map(|number| tree.path(number));
    let child = tree.admit(3, &[1, 2]);
    assert_eq!(group(&tree, &child).as_deref(), Some("a"));
    let grandchild = tree.admit(4, &[77, 2]);
    assert_eq!(group(&tree, &grandchild).as_deref(), Some("b"));
    tree.dismiss(2);
    let late = tree.admit(5, &[2]);
    assert_eq!(group(&tree, &late).as_deref(), Some("b"), "its parent has ended");
    let stranger = tree.admit(6, &[99]);
    assert_eq!(group(&tree, &stranger).as_deref(), Some("/"));
    tree.admit(2, &[]);
    tree.dismiss(2);
    let other = tree.admit(8, &[2]);
    assert_eq!(group(&tree, &other).as_deref(), Some("/"), "the number was another process's, in the root");
    tree.admit(2, &[4]);
    tree.dismiss(2);
    tree.remove("b").expect("removed");
    let later = tree.admit(7, &[2]);
    assert_eq!(group(&tree, &later).as_deref(), Some("/"), "the ended go to the group above, too");
}

#[test]
fn who_has_ended_is_charged_with_nothing() {
    let mut tree = tree(&["a"]);
    let account = tree.admit(1, &[]);
    tree.move_process(1, "a").expect("moved");
    tree.charge(&account, 7, 3);
    tree.dismiss(1);
    tree.charge(&account, 5, -3);
    assert!(account.has_ended());
    assert_eq!((used(&tree, "a"), used(&tree, "/")), (0, 0));
}

#[test]
fn a_measurement_keeps_what_was_charged_meanwhile_and_learns_from_what_was_not() {
    let mut tree = tree(&["a"]);
    let number = tree.find("a").expect("a");
    tree.set_limit(number, 100_000, THREADS);
    let account = tree.admit(1, &[]);
    tree.move_process(1, "a").expect("moved");
    tree.measure(&account, 0, 1000);
    (0..4000).for_each(|_| tree.group(number).end_round(THREADS, 1));
    let calm = tree.group(number).marks(THREADS).hard();
    let begun = account.used();
    tree.charge(&account, 7, 0);
    tree.measure(&account, begun, 1300);
    assert_eq!(used(&tree, "a"), 1307);
    tree.group(number).end_round(THREADS, 1);
    assert_eq!(tree.group(number).marks(THREADS).hard(), calm - 600);
}

#[test]
fn a_process_is_held_back_by_every_group_above_it() {
    let mut tree = tree(&["a", "a/b"]);
    let [a, b] = ["a", "a/b"].map(|path| tree.find(path).expect(path));
    let account = tree.admit(1, &[]);
    tree.move_process(1, "a/b").expect("moved");
    let has_room = |tree: &GroupTree| tree.above_account(&account).all(|group| group.has_room(1, THREADS));
    tree.charge(&account, 20_000, 0);
    assert!(has_room(&tree));
    tree.set_limit(a, 16_384, THREADS);
    assert!(!has_room(&tree) && tree.group(b).wanted(THREADS) == 0 && tree.group(a).wanted(THREADS) > 3616);
    tree.charge(&account, 0, 20_000);
    assert_eq!(tree.group(a).wanted(THREADS), 0, "what is under way is not wanted twice");
    assert!(!tree.group(a).is_helpless(2));
    tree.charge(&account, 0, -20_000);
    tree.group(a).set_idle(0, true);
    assert!(!tree.group(a).is_helpless(2));
    tree.group(a).set_idle(1, true);
    assert!(tree.group(a).is_helpless(2));
    tree.group(a).set_idle(0, false);
    assert!(!tree.group(a).is_helpless(2));
    tree.set_limit(a, NO_LIMIT, THREADS);
    assert!(has_room(&tree));
}

#[test]
fn parts_are_of_the_nearest_limit_above() {
    let mut tree = tree(&["a", "a/b", "a/b/c"]);
    let budget = 1 << 16;
    let half = "50%".parse().expect("a limit");
    let pages = |tree: &GroupTree, path: &str| {
        let (_, above) = tree.limited(path).expect(path);
        tree.pages_of(half, above, budget)
    };
    assert_eq!(pages(&tree, "a/b/c"), Ok(budget / 2));
    tree.set_limit(tree.find("a").expect("a"), 10_000, THREADS);
    assert_eq!((pages(&tree, "a"), pages(&tree, "a/b/c")), (Ok(budget / 2), Ok(5000)));
    let too_little = tree.pages_of("1M".parse().expect("a limit"), ROOT, budget);
    assert!(too_little.is_err_and(|error| error.contains("too little for a group")));
    assert_eq!(tree.pages_of(Limit::Max, ROOT, budget), Ok(NO_LIMIT));
    assert!("much".parse::<Limit>().is_err());
}

#[test]
fn what_cannot_be_done_is_refused_and_changes_nothing() {
    let mut tree = tree(&["a", "a/b", "a/b/c", "d", "d/b"]);
    tree.admit(1, &[]);
    let before = format!("{tree:?}");
    let long = "x".repeat(LONGEST_NAME + 1);
    for path in ["", "/", "a//x", "a/.", "..", "a/../x", "12", "12/x", "a b", "ü", "a\n", &long, "1/2/3/4/5/6/7/8/9"] {
        assert!(tree.create(path).is_err(), "{path}");
    }
    let deep = tree.create("a/b/c/d/e/f/g/h/i");
    assert!(deep.is_err_and(|error| error.contains("8 names")));
    assert!(tree.create("a/b").is_err_and(|error| error.contains("already")));
    assert!(tree.create("x/y").is_err_and(|error| error.contains("create it first")));
    assert!(tree.remove("/").is_err() && tree.remove("x").is_err());
    assert!(tree.remove("a").is_err_and(|error| error.contains("a/b")));
    for (what, to) in [("a", "a"), ("a", "a/b/c"), ("a/b", "d"), ("a/b", "a"), ("/", "a"), ("x", "a"), ("a", "x")] {
        assert!(tree.move_group(what, to).is_err(), "{what} to {to}");
    }
    assert!(tree.move_process(1, "x").is_err() && tree.move_process(2, "a").is_err());
    assert!(tree.limited("/").is_err() && tree.limited("x").is_err());
    assert_eq!(format!("{tree:?}"), before);
}

#[test]
fn levels_and_numbers_are_bounded() {
    let mut tree = tree(&["a", "a/a", "a/a/a", "a/a/a/a", "b", "b/b", "b/b/b", "b/b/b/b", "b/b/b/b/b"]);
    assert!(tree.move_group("a", "b/b/b/b/b").is_err_and(|error| error.contains("8 levels")));
    assert_eq!(tree.move_group("a/a", "b/b/b/b/b").as_deref(), Ok("b/b/b/b/b/a"));
    let made = (0..MAX_GROUPS).filter(|number| tree.create(&format!("g{number}")).is_ok()).count();
    assert_eq!(made, MAX_GROUPS - 10);
    tree.remove("g0").expect("removed");
    assert!(tree.create("again").is_ok() && tree.create("more").is_err());
}

/// One order or charge; the numbers choose among the groups and processes that exist.
#[derive(Clone, Debug)]
enum Act {
    Create(usize, usize),
    Remove(usize),
    MoveGroup(usize, usize),
    Admit(u32, u32),
    Dismiss(u32),
    MoveProcess(u32, usize),
    Charge(u32, i64, i64),
    Measure(u32, i64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let (group, pid) = (0..12usize, 1..12u32);
    prop::collection::vec(
        prop_oneof![
            (group.clone(), 0..4usize).prop_map(|(above, name)| Act::Create(above, name)),
            group.clone().prop_map(Act::Remove),
            (group.clone(), group.clone()).prop_map(|(what, to)| Act::MoveGroup(what, to)),
            (pid.clone(), pid.clone()).prop_map(|(pid, parent)| Act::Admit(pid, parent)),
            pid.clone().prop_map(Act::Dismiss),
            (pid.clone(), group).prop_map(|(pid, to)| Act::MoveProcess(pid, to)),
            (pid.clone(), -50..500i64, -9..9i64).prop_map(|(pid, used, way)| Act::Charge(pid, used, way)),
            (pid, 0..5000i64).prop_map(|(pid, pages)| Act::Measure(pid, pages)),
        ],
        1..120,
    )
}

/// The model: the group and the pages of each process, by paths.
#[derive(Default)]
struct Model {
    paths: Vec<String>,
    processes: BTreeMap<u32, (String, i64, i64)>,
    ended: BTreeMap<u32, String>,
}

impl Model {
    fn path(&self, number: usize) -> String {
        self.paths.get(number % (self.paths.len() + 1)).cloned().unwrap_or_default()
    }

    fn within(path: &str, above: &str) -> bool {
        above.is_empty() || path == above || path.starts_with(&format!("{above}/"))
    }

    fn joined(above: &str, name: &str) -> String {
        if above.is_empty() { name.into() } else { format!("{above}/{name}") }
    }

    /// Replaces every path at or below `from` by one at or below `to`.
    fn rename(&mut self, from: &str, to: &str) {
        let change = |path: &mut String| {
            if Self::within(path, from) {
                *path = format!("{to}{}", &path[from.len()..]);
            }
        };
        self.paths.iter_mut().for_each(change);
        self.processes.values_mut().for_each(|(path, ..)| change(path));
        self.ended.values_mut().for_each(change);
    }

    fn act(&mut self, tree: &mut GroupTree, act: &Act) {
        match act {
            Act::Create(above, name) => {
                let path = Self::joined(&self.path(*above), &format!("n{name}"));
                if tree.create(&path).is_ok() {
                    assert!(!self.paths.contains(&path));
                    self.paths.push(path);
                }
            }
            Act::Remove(number) => {
                let path = self.path(*number);
                if tree.remove(&path).is_ok() {
                    let above = path.rsplit_once('/').map_or(String::new(), |(above, _)| above.into());
                    self.paths.retain(|known| *known != path);
                    self.rename(&path, &above);
                }
            }
            Act::MoveGroup(what, to) => {
                let (what, to) = (self.path(*what), self.path(*to));
                let allowed = !what.is_empty() && !Self::within(&to, &what);
                if let Ok(moved) = tree.move_group(&what, &to) {
                    assert!(allowed && moved == Self::joined(&to, what.rsplit('/').next().unwrap_or_default()));
                    self.rename(&what, &moved);
                }
            }
            Act::Admit(pid, parent) => {
                tree.admit(*pid, &[*parent]);
                let living = self.processes.get(parent).map(|(path, ..)| path);
                let path = living.or_else(|| self.ended.get(parent)).cloned().unwrap_or_default();
                self.processes.entry(*pid).or_insert((path, 0, 0));
            }
            Act::Dismiss(pid) => {
                tree.dismiss(*pid);
                if let Some((path, ..)) = self.processes.remove(pid) {
                    self.ended.remove(pid);
                    if !path.is_empty() {
                        self.ended.insert(*pid, path);
                    }
                }
            }
            Act::MoveProcess(pid, to) => {
                let to = self.path(*to);
                let moved = tree.move_process(*pid, &to).is_ok();
                assert_eq!(moved, self.processes.contains_key(pid));
                self.processes.entry(*pid).and_modify(|process| process.0 = to);
                self.processes.retain(|known, _| moved || known != pid);
            }
            Act::Charge(pid, used, under_way) => {
                if let (Some(account), Some(known)) = (tree.account(*pid), self.processes.get_mut(pid)) {
                    tree.charge(account, *used, *under_way);
                    (known.1, known.2) = (known.1 + used, known.2 + under_way);
                }
            }
            Act::Measure(pid, pages) => {
                if let (Some(account), Some(known)) = (tree.account(*pid), self.processes.get_mut(pid)) {
                    tree.measure(account, account.used(), *pages);
                    known.1 = *pages;
                }
            }
        }
    }

    fn agrees(&self, tree: &GroupTree) {
        for path in self.paths.iter().map(String::as_str).chain([""]) {
            let group = tree.group(tree.find(path).expect("a group of the model"));
            let within = self.processes.values().filter(|(at, ..)| Self::within(at, path));
            let (used, under_way) = within.fold((0, 0), |sum, process| (sum.0 + process.1, sum.1 + process.2));
            assert_eq!((group.used(), group.under_way.load(Relaxed)), (used, under_way), "{path:?}");
        }
        assert_eq!(tree.deepest_first().len(), self.paths.len(), "no other group holds anything");
        for (pid, (path, used, _)) in &self.processes {
            let account = tree.account(*pid).expect("an account");
            assert_eq!(account.used(), *used);
            let group = tree.group_of(account).map(|number| tree.path(number));
            assert_eq!(group.as_deref(), Some(if path.is_empty() { "/" } else { path }), "process {pid}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn after_any_orders_the_sums_are_those_of_the_processes(acts in acts()) {
        let (mut tree, mut model) = (GroupTree::default(), Model::default());
        for act in &acts {
            model.act(&mut tree, act);
            model.agrees(&tree);
        }
    }

    #[test]
    fn any_path_is_a_group_or_refused(path in "\\PC{0,40}|[a-z0-9/.]{0,30}") {
        let mut tree = GroupTree::default();
        if tree.create(&path).is_ok() {
            prop_assert!(tree.find(&path).is_ok_and(|number| number != ROOT));
            prop_assert!(tree.remove(&path).is_ok());
        }
    }
}

/// Threads charge while others change the tree: no charge is lost, and none stays behind.
#[test]
fn moves_beside_charges_leave_nothing_behind() {
    use crate::accounting::groups::Groups;
    let groups = Groups::new(2, Vec::new());
    for path in ["a", "b"] {
        groups.create(path, Limit::Max, 1 << 20).expect("created");
    }
    let accounts: Vec<_> = (0..4).map(|number| groups.meet(u32::MAX - number, Vec::new)).collect();
    std::thread::scope(|scope| {
        for account in &accounts {
            scope.spawn(|| {
                for round in 0..20_000 {
                    groups.charge(account, if round % 3 == 0 { -1 } else { 2 });
                    groups.under_way(account, if round % 2 == 0 { 5 } else { -5 });
                }
            });
        }
        for round in 0..200 {
            let to = ["a", "b", "b/c", "/"][round % 4];
            // This is refused if the group exists already, or does not exist.
            let _ = groups.create("b/c", Limit::Max, 1 << 20);
            let _ = groups.move_process(u32::MAX - (round % 4) as u32, to);
            let _ = groups.remove("b/c");
        }
    });
    let each = accounts[0].used();
    assert!(each > 0 && accounts.iter().all(|account| account.used() == each));
    for figures in groups.figures().iter().filter(|figures| figures.path != "/") {
        assert_eq!(figures.used, each * figures.processes.len() as i64, "{}", figures.path);
    }
    assert_eq!(groups.figures()[0].used, 4 * each);
}
