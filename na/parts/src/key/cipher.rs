//! What records are sealed with: the end that dials chooses what its processor is quick at, and says so in its first byte.
//!
//! | byte | cipher | chosen |
//! |---:|---|---|
//! | 0 | ChaCha20-Poly1305 | where the processor has no instructions for the other |
//! | 1 | AES-256-GCM | where `graviola` runs: x86-64 with AES, AVX2 and ADX, ARM with AES |
//!
//! Every end seals and opens with either. Where `graviola` does not run, AES-256-GCM is `aes-gcm`'s, by way of `snow`: the same bytes, but on a
//! processor without any instructions of AES a tenth as many a second as of ChaCha20-Poly1305 (figures: ARCHITECTURE.md of `na/tcp`).

use snow::{
    params::{CipherChoice, DHChoice, HashChoice},
    resolvers::{CryptoResolver, DefaultResolver},
    types::{Cipher, Dh, Hash, Random},
};

/// How the two ends exchange keys and seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Suite {
    ChaCha = 0,
    Aes = 1,
}

impl Suite {
    /// What this processor is quick at.
    pub(super) fn here() -> Self {
        if quick::is_here() { Self::Aes } else { Self::ChaCha }
    }

    pub(super) fn decode(byte: u8) -> Option<Self> {
        [Self::ChaCha, Self::Aes].into_iter().find(|suite| *suite as u8 == byte)
    }

    /// Its name in Noise. Both ends mix it into all keys: who changes the byte on the way has the exchange fail.
    pub(super) fn pattern(self) -> &'static str {
        match self {
            Self::ChaCha => "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s",
            Self::Aes => "Noise_NNpsk0_25519_AESGCM_BLAKE2s",
        }
    }
}

/// What `snow` is to take its parts from: itself, but for AES where there is something quicker.
pub(super) struct Resolver;

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        DefaultResolver.resolve_rng()
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        let quick = matches!(choice, CipherChoice::AESGCM).then(quick::aes).flatten();
        quick.or_else(|| DefaultResolver.resolve_cipher(choice))
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod quick {
    use graviola::{aead::AesGcm, util::is_cpu_supported};
    use snow::{Error, types::Cipher};

    const TAG: usize = 16;

    /// Whether the processor has what it takes; without it `graviola` panics.
    pub(super) fn is_here() -> bool {
        is_cpu_supported()
    }

    pub(super) fn aes() -> Option<Box<dyn Cipher>> {
        is_here().then(|| Box::new(Aes(AesGcm::new(&[0; 32]))) as _)
    }

    struct Aes(AesGcm);

    impl Cipher for Aes {
        fn name(&self) -> &'static str {
            "AESGCM"
        }

        fn set(&mut self, key: &[u8; 32]) {
            self.0 = AesGcm::new(key);
        }

        fn encrypt(&self, nonce: u64, with: &[u8], plain: &[u8], out: &mut [u8]) -> usize {
            let (body, rest) = out.split_at_mut(plain.len());
            let tag = rest.first_chunk_mut::<TAG>().expect("the caller has room for the tag");
            body.copy_from_slice(plain);
            self.0.encrypt(&bytes_of(nonce), with, body, tag);
            plain.len() + TAG
        }

        fn decrypt(
            &self,
            nonce: u64,
            with: &[u8],
            sealed: &[u8],
            out: &mut [u8],
        ) -> Result<usize, Error> {
            let (body, tag) = sealed.split_last_chunk::<TAG>().ok_or(Error::Decrypt)?;
            let out = out.get_mut(..body.len()).ok_or(Error::Decrypt)?;
            out.copy_from_slice(body);
            let opened = self.0.decrypt(&bytes_of(nonce), with, out, tag);
            opened.map(|()| body.len()).map_err(|_| Error::Decrypt)
        }
    }

    /// As Noise has it for AESGCM: four bytes of zeros, and the number in big-endian order.
    fn bytes_of(nonce: u64) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[4..].copy_from_slice(&nonce.to_be_bytes());
        bytes
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod quick {
    pub(super) fn is_here() -> bool {
        false
    }

    pub(super) fn aes() -> Option<Box<dyn snow::types::Cipher>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both implementations of AES with one key.
    fn both() -> Option<[Box<dyn Cipher>; 2]> {
        let mut both = [quick::aes()?, DefaultResolver.resolve_cipher(&CipherChoice::AESGCM)?];
        both.iter_mut().for_each(|cipher| cipher.set(&[7; 32]));
        Some(both)
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "says what is skipped")]
    fn what_one_implementation_of_aes_seals_the_other_opens_and_nothing_else() {
        let Some(mut both) = both() else {
            println!(
                "SKIPPED: what_one_implementation_of_aes_seals_...: graviola does not run on this processor"
            );
            return;
        };
        for rekeyed in [false, true] {
            for len in (0..700).chain([4096, 16_384, 16_385, 65_519]) {
                let nonce = u64::try_from(len).unwrap() * 0x0101_0101_0101;
                let plain: Vec<u8> = (0..=250).cycle().take(len).collect();
                let mut sealed = [vec![0; len + 16], vec![0; len + 16]];
                for (cipher, sealed) in both.iter().zip(&mut sealed) {
                    assert_eq!(cipher.encrypt(nonce, b"with", &plain, sealed), len + 16);
                }
                assert!(sealed[0] == sealed[1], "{len} bytes, rekeyed: {rekeyed}");
                for cipher in &both {
                    let mut opened = vec![0; len];
                    let read = cipher.decrypt(nonce, b"with", &sealed[0], &mut opened);
                    assert!(read.is_ok_and(|it| it == len) && opened == plain, "{len}");
                    let mut other = sealed[0].clone();
                    other[len / 2] ^= 1;
                    assert!(cipher.decrypt(nonce, b"with", &other, &mut opened).is_err());
                    assert!(cipher.decrypt(nonce + 1, b"with", &sealed[0], &mut opened).is_err());
                    assert!(cipher.decrypt(nonce, b"", &sealed[0], &mut opened).is_err());
                }
            }
            both.iter_mut().for_each(|cipher| cipher.rekey());
        }
    }
}
