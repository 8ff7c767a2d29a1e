//! fileview
