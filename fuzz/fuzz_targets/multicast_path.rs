//! A path from whoever sends a copy: what is taken leads nowhere but below the receiver's folder, also below another path.
#![no_main]

use std::path::Component;

use hg_multicast_copy::path::{Below, PATH_MAX, SPOOL};
use libfuzzer_sys::fuzz_target;

fn check(path: &Below) {
    let names: Vec<Component<'_>> = path.as_path().components().collect();
    assert!(!names.is_empty() && names.iter().all(|it| matches!(it, Component::Normal(_))));
    assert!(path.bytes().len() <= PATH_MAX && names[0].as_os_str() != SPOOL);
}

fuzz_target!(|bytes: &[u8]| {
    let (folder, path) = bytes.split_at(bytes.len() / 2);
    let folder = Below::new(folder).ok();
    folder.iter().for_each(check);
    for text in [path, bytes] {
        let Ok(path) = Below::new(text) else { continue };
        check(&path);
        if let Ok(inside) = path.within(folder.as_ref()) {
            check(&inside);
        }
        assert_eq!(Below::of_user(path.as_path()), Ok(Some(path.clone())));
    }
});
