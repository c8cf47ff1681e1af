//! The orders of `uswap group` for a mount: a group is a folder, with all that lies in it.

use uswap_core::PAGE;
use uswap_core::util::size::human;
use uswap_run::control::group_orders::is_below;
use uswap_run::control::protocol::answer::{GroupLimited, GroupRemoved};
use uswap_run::control::protocol::status::GroupFigures;
use uswap_run::group::{Limit, MIN_LIMIT, ROOT_NAME};

use crate::cache::FileCache;
use crate::cache::groups::GroupId;
use crate::tree::SourceTree;
use crate::tree::folder_groups::trimmed;

/// Makes the group of a folder. `limit`: the text of its limit.
///
/// # Errors
/// For the user; nothing is changed then.
pub fn create(tree: &SourceTree, path: &str, limit: Option<&str>) -> Result<GroupLimited, String> {
    let (path, cache) = (trimmed(path), tree.cache());
    if path.is_empty() {
        return Err("a group of a mount is a folder in it, and / is the mount itself".into());
    }
    if path.split('/').any(|name| matches!(name, "" | "." | "..")) {
        return Err(format!("{path:?}: write the folder's path below the mount, without . and .."));
    }
    if tree.groups().id(path).is_some() {
        return Err(format!("there is a group {path:?} already"));
    }
    tree.folder(path).map_err(|error| format!("{path:?}: {error}; a group of a mount is a folder in it"))?;
    let above = tree.groups().nearest(path, None);
    let pages = pages_of(cache, above, limit.unwrap_or("max"))?;
    let id = cache.add_group(above, pages).ok_or("a mount has 255 groups at most")?;
    for (other, below) in tree.groups().all() {
        if is_below(&other, path) && tree.groups().nearest(&other, Some(below)) == above {
            cache.set_above(below, id);
        }
    }
    tree.groups().add(path, id);
    tree.sort_into_groups();
    Ok(limited(path, pages))
}

/// Changes the limit of a group. `limit`: the text of the new limit.
///
/// # Errors
/// For the user; nothing is changed then.
pub fn limit(tree: &SourceTree, path: &str, limit: &str) -> Result<GroupLimited, String> {
    let (path, id) = find(tree, path)?;
    let above = tree.groups().nearest(path, Some(id));
    let pages = pages_of(tree.cache(), above, limit)?;
    tree.cache().limit_group(id, pages);
    Ok(limited(path, pages))
}

/// Removes a group. Its files go to the group above it.
///
/// # Errors
/// For the user; nothing is changed then.
pub fn remove(tree: &SourceTree, path: &str) -> Result<GroupRemoved, String> {
    let (path, id) = find(tree, path)?;
    let above = tree.groups().nearest(path, Some(id));
    let files = tree.cache().group_figures().get(&id).map_or(0, |its| its.files);
    tree.groups().remove(path);
    tree.sort_into_groups();
    tree.cache().remove_group(id, above);
    Ok(GroupRemoved { group: path.to_owned(), processes: 0, files: Some(files) })
}

fn find<'a>(tree: &SourceTree, path: &'a str) -> Result<(&'a str, GroupId), String> {
    let path = trimmed(path);
    if path.is_empty() {
        return Err("the root is the mount itself (uswap limit changes its memory)".into());
    }
    tree.groups().id(path).map(|id| (path, id)).ok_or_else(|| format!("there is no group {path:?}"))
}

/// Converts the text of a limit into pages; `None`: no limit.
fn pages_of(cache: &FileCache, above: GroupId, limit: &str) -> Result<Option<u64>, String> {
    let Limit::Size(size) = limit.parse()? else { return Ok(None) };
    let whole = match cache.limit_above(above) {
        Some(pages) => pages * PAGE,
        None => cache.ram(),
    };
    let bytes = size.of(whole);
    if bytes < MIN_LIMIT {
        return Err(format!("{} is too little for a group: the least is {}", human(bytes), human(MIN_LIMIT)));
    }
    Ok(Some(bytes / PAGE))
}

fn limited(path: &str, pages: Option<u64>) -> GroupLimited {
    GroupLimited { group: path.to_owned(), limit_bytes: pages.map(|pages| pages * PAGE) }
}

/// The figures of all groups, the root first.
pub fn figures(tree: &SourceTree) -> Vec<GroupFigures> {
    let cache = tree.cache();
    let root = (String::new(), GroupId::ROOT);
    let all: Vec<(String, GroupId)> = std::iter::once(root).chain(tree.groups().all()).collect();
    let known = cache.group_figures();
    let memory = cache.memory().used();
    let sum = |path: &str| {
        let ids = all.iter().filter(|(other, _)| path.is_empty() || is_below(other, path)).map(|(_, id)| id);
        ids.filter_map(|id| known.get(id)).fold((0, 0), |(stored, files), its| (stored + its.stored, files + its.files))
    };
    let tell = |(path, id): &(String, GroupId)| {
        let ((stored, files), is_root) = (sum(path), *id == GroupId::ROOT);
        let its = known.get(id).copied().unwrap_or_default();
        let own = (its.used * PAGE, its.peak * PAGE, its.limit.map(|pages| pages * PAGE));
        let (used, peak, limit) = if is_root { (memory, cache.peak(), Some(cache.ram())) } else { own };
        GroupFigures {
            name: if is_root { ROOT_NAME.to_owned() } else { path.clone() },
            ram_bytes: used,
            ram_peak_bytes: peak,
            ram_limit_bytes: limit,
            swapped_bytes: stored * PAGE,
            files: Some(files),
            ..GroupFigures::default()
        }
    };
    all.iter().map(tell).collect()
}
