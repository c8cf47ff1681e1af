//! The macro that turns one line for each policy into its module, its name, and its variant of
//! [`AnyPolicy`](super::AnyPolicy), which the engine calls without an indirect call and clones for
//! fork children.

/// `file::Type = "name", "what it is";` for each policy; the first is the engine's own. The file
/// lies beside `mod.rs`, and the type implements `ReclaimPolicy` and `Default`.
macro_rules! reclaim_policies {
    ($($(#[$only:meta])* $file:ident::$policy:ident = $name:literal, $about:literal;)+) => {
        $($(#[$only])* pub mod $file;)+

        /// A policy's name.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum PolicyKind {
            $(#[doc = $about] $(#[$only])* $policy,)+
        }

        /// A policy of any kind.
        #[derive(Clone, Debug)]
        // Each space contains one: the bytes that the smaller variants waste are negligible beside
        // a page table.
        #[allow(clippy::large_enum_variant)]
        pub enum AnyPolicy {
            $(#[doc = $about] $(#[$only])* $policy($file::$policy),)+
        }

        impl PolicyKind {
            /// All policies; the engine's own is the first.
            pub const ALL: &'static [Self] = &[$($(#[$only])* Self::$policy,)+];

            /// The name of the policy.
            pub const fn name(self) -> &'static str {
                match self { $($(#[$only])* Self::$policy => $name,)+ }
            }

            /// The name of the policy in comparisons with policies that are not the engine's.
            pub const fn full_name(self) -> &'static str {
                match self { $($(#[$only])* Self::$policy => concat!("uswap-", $name),)+ }
            }

            /// A description in a few words.
            pub const fn about(self) -> &'static str {
                match self { $($(#[$only])* Self::$policy => $about,)+ }
            }

            /// Makes a policy, which has no pages yet.
            pub fn build(self) -> AnyPolicy {
                match self { $($(#[$only])* Self::$policy => AnyPolicy::$policy(Default::default()),)+ }
            }
        }

        reclaim_policies! {
            @calls [$($(#[$only])* $policy,)+]
            reads pages() -> &PageLists;
            changes pages_mut() -> &mut PageLists;
            changes next_victim(table: &mut PageTable) -> Option<u64>;
            changes refault(word: PageWord) -> Refault;
            changes evict(word: PageWord) -> u32;
            reads evictions() -> u32;
            changes join(table: &mut PageTable, page: u64, word: PageWord) -> ();
            changes rejoin(table: &mut PageTable, page: u64, word: PageWord) -> ();
            changes forget(word: PageWord) -> ();
            changes has_room(ample: bool) -> bool;
            reads staging_target(resident: u64) -> Option<u64>;
            changes note_staged(pages: u64) -> ();
            changes soft_fault(word: PageWord) -> ();
            changes soft_faults_cost(cost: Cost) -> ();
            reads notes_touches() -> bool;
            changes tidy(table: &mut PageTable) -> ();
        }
    };
    (@calls $kinds:tt $($how:ident $call:ident($($given:ident: $type:ty),*) -> $answer:ty;)+) => {
        impl ReclaimPolicy for AnyPolicy {
            $(reclaim_policies! { @$how $kinds $call($($given: $type),*) -> $answer })+
        }
    };
    (@reads $kinds:tt $call:ident($($given:ident: $type:ty),*) -> $answer:ty) => {
        #[inline]
        fn $call(&self, $($given: $type),*) -> $answer {
            reclaim_policies!(@pass self $kinds $call($($given),*))
        }
    };
    (@changes $kinds:tt $call:ident($($given:ident: $type:ty),*) -> $answer:ty) => {
        #[inline]
        fn $call(&mut self, $($given: $type),*) -> $answer {
            reclaim_policies!(@pass self $kinds $call($($given),*))
        }
    };
    (@pass $me:ident [$($(#[$only:meta])* $policy:ident,)+] $call:ident $given:tt) => {
        match $me { $($(#[$only])* AnyPolicy::$policy(policy) => policy.$call $given,)+ }
    };
}
