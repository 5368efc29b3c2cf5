//! The one line by which a plugin is tested.

hg_na_conformance::suite!(outside::Unix, "unix://");
