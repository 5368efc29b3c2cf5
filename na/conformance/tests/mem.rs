//! The reference plugin passes its own suite.

hg_na_conformance::suite!(hg_na_conformance::Mem::default(), "mem://", in_process_only);
