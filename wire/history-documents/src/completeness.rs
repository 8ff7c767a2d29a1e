//! The field `complete` of answers. It is present, and false, only if something was left out
//! because the client may not see it.

pub(crate) fn complete() -> bool {
    true
}

pub(crate) fn is_complete(complete: &bool) -> bool {
    *complete
}
