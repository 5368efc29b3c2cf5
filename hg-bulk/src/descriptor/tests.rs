//! Every form survives the wire; nothing else is taken.

use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

use super::*;

fn region(len: u64, rights: Rights) -> Region {
    Region::new(len, rights, b"an unguessable token")
}

fn address() -> Address {
    "sm://somebody".parse().unwrap()
}

fn eager(bytes: &[u8], owner: Option<&Address>) -> Descriptor {
    let fill = |into: &mut [u8]| {
        into.copy_from_slice(bytes);
        Ok(())
    };
    Descriptor::with_bytes(bytes.len(), owner, fill).unwrap()
}

/// One of each form.
fn all_forms() -> Vec<Descriptor> {
    let two = vec![region(8, Rights::READ), region(9, Rights::READ)];
    vec![
        Descriptor::of_regions(Rights::empty(), "sm", None, Vec::new()),
        Descriptor::of_regions(Rights::WRITE, "sm", None, vec![region(5, Rights::WRITE)]),
        Descriptor::of_regions(Rights::READ, "ofi+tcp;ofi_rxm", Some(&address()), two),
        Descriptor::of_regions(Rights::all(), "sm", Some(&address()), Vec::new()),
        eager(b"bytes", None),
        eager(b"more bytes", Some(&address())),
    ]
}

fn is_refused(bytes: &[u8]) -> bool {
    matches!(Descriptor::decode(bytes), Err(Error::BadDescriptor(_)))
}

#[test]
fn every_form_survives_the_wire() {
    for form in all_forms() {
        let again = Descriptor::decode(form.as_bytes()).unwrap();
        assert_eq!(again, form);
        assert_eq!(
            (again.len(), again.rights(), again.scheme(), again.owner(), again.eager()),
            (form.len(), form.rights(), form.scheme(), form.owner(), form.eager())
        );
        assert_eq!(again.regions(), form.regions());
        let json = serde_json::to_string(&form).unwrap();
        assert_eq!(serde_json::from_str::<Descriptor>(&json).unwrap(), form);
    }
}

#[test]
fn truncated_and_lengthened_descriptors_are_refused() {
    for form in all_forms() {
        let bytes = form.as_bytes();
        for len in 0..bytes.len() {
            assert!(is_refused(&bytes[..len]), "{form:?} cut to {len}");
        }
        assert!(is_refused(&[bytes, &[0]].concat()), "{form:?} with a byte more");
    }
}

#[test]
fn a_count_of_two_to_the_32_is_refused_before_anything_is_allocated() {
    for form in all_forms() {
        for count in [u32::MAX, 1 << 31, 1 << 20] {
            let mut bytes = form.as_bytes().to_vec();
            bytes[4..8].copy_from_slice(&count.to_le_bytes());
            assert!(is_refused(&bytes), "{form:?} with {count} regions");
        }
    }
}

#[test]
fn sizes_that_wrap_are_refused() {
    let rights = Rights::READ;
    let mut bytes = header(rights, "sm", 2, 1, None, 0);
    push_counted(&mut bytes, &region(u64::MAX, rights).encode());
    push_counted(&mut bytes, &region(2, rights).encode());
    assert!(is_refused(&bytes));
}

#[test]
fn sizes_that_do_not_add_up_are_refused() {
    for form in all_forms() {
        let mut bytes = form.as_bytes().to_vec();
        bytes[8..16].copy_from_slice(&(form.len() + 1).to_le_bytes());
        assert!(is_refused(&bytes), "{form:?}");
    }
}

#[test]
fn regions_with_other_rights_are_refused() {
    let one = Descriptor::of_regions(Rights::READ, "sm", None, vec![region(5, Rights::READ)]);
    let mut bytes = one.as_bytes().to_vec();
    bytes[2] = Rights::all().bits();
    assert!(is_refused(&bytes));
}

#[test]
fn bytes_of_writable_memory_do_not_ride() {
    for rights in [Rights::empty(), Rights::WRITE, Rights::all()] {
        let mut bytes = eager(b"bytes", None).as_bytes().to_vec();
        bytes[2] = rights.bits();
        assert!(is_refused(&bytes), "{rights:?}");
    }
}

#[test]
fn a_range_of_eager_bytes_is_those_bytes() {
    let descriptor = eager(b"0123456789", Some(&address()));
    let part = descriptor.range(2..8).unwrap().range(1..=2).unwrap();
    assert_eq!(part.eager(), Some(&b"34"[..]));
    assert_eq!(part.eager_view().unwrap().as_slice(), Some(&b"34"[..]));
    assert!(part.range(3..).is_err());
}

#[test]
fn the_region_of_a_range_is_found_when_there_is_one() {
    let regions = [8, 0, 8].map(|len| region(len, Rights::READ)).to_vec();
    let descriptor = Descriptor::of_regions(Rights::READ, "sm", None, regions);
    let place = |range: std::ops::Range<u64>| descriptor.range(range).unwrap().only_region();
    assert_eq!(place(0..8), Some(crate::Place { region: 0, offset: 0 }));
    assert_eq!(place(9..12), Some(crate::Place { region: 2, offset: 1 }));
    assert_eq!(place(7..9), None);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_refused_or_one_descriptor(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(descriptor) = Descriptor::decode(&bytes) {
            prop_assert_eq!(descriptor.as_bytes(), &bytes[..]);
        }
    }

    #[test]
    fn the_short_way_takes_what_the_way_for_all_takes_and_makes_the_same_of_it(
        form in 0_usize..7, len: u64, token_len in 0_usize..129, scheme in "[!-~]{1,16}",
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..3),
        cut in 0_usize..200,
    ) {
        let plain = || {
            let region = Region::new(len, Rights::READ, &vec![7; token_len]);
            Descriptor::of_regions(Rights::READ, &scheme, None, vec![region])
        };
        let forms = all_forms();
        let mut bytes = forms.get(form).map_or_else(plain, Clone::clone).as_bytes().to_vec();
        for (at, value) in &damage {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        if cut < bytes.len() && !damage.is_empty() {
            bytes.truncate(cut);
        }
        let general = Descriptor::decode_any(&bytes);
        let is_plain = general.as_ref().is_ok_and(|it| {
            it.regions().len() == 1 && it.owner().is_none() && !it.is_eager()
        });
        let short = Descriptor::decode_plain(&bytes);
        prop_assert_eq!(short.is_some(), is_plain);
        if let (Some(short), Ok(general)) = (short, general) {
            prop_assert_eq!(short.as_bytes(), general.as_bytes());
            prop_assert_eq!(short.regions(), general.regions());
            let seen = |it: &Descriptor| {
                (it.len(), it.rights(), it.scheme().to_owned(), it.owner().cloned(), it.is_eager())
            };
            prop_assert_eq!(seen(&short), seen(&general));
        }
    }

    #[test]
    fn flipped_bits_are_refused_or_stay_within_what_they_claim(
        form in 0_usize..6, at in any::<proptest::sample::Index>(), bit in 0_u32..8,
    ) {
        let mut bytes = all_forms()[form].as_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if let Ok(descriptor) = Descriptor::decode(&bytes) {
            let sum: u64 = descriptor.regions().iter().map(Region::len).sum();
            let eager = descriptor.eager().map_or(0, <[u8]>::len) as u64;
            prop_assert_eq!(descriptor.len(), sum + eager);
            prop_assert!(descriptor.range(..=descriptor.len()).is_err());
        }
    }
}
