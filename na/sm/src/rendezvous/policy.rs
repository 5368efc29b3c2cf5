//! Who may connect: processes of the same effective user, and of users that a setting lists.
//!
//! Both sides ask, of credentials that the kernel vouches for (`SO_PEERCRED`). In a user namespace all users that have no number
//! there are told as one (`/proc/sys/kernel/overflowuid`): that one is nobody, whatever the own number is.

use std::fs::read_to_string;

use hg_na::Error;
use nix::unistd::geteuid;

use super::socket::Credentials;

/// Name of the setting: user ids, separated by commas.
pub(crate) const ALLOW_UID: &str = "allow-uid";

/// Users that the setting may list.
pub(crate) const ALLOW_UID_MAX: usize = 64;

/// The users that may connect.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    own: u32,
    others: Vec<u32>,
    /// Who is told in place of users that have no number in this user namespace; `None`: it is a user itself.
    unmapped: Option<u32>,
}

impl Policy {
    /// This process's effective user, and those of the setting where there is one.
    ///
    /// # Errors
    /// [`Error::BadSetting`].
    pub(crate) fn from_setting(value: Option<&str>) -> Result<Self, Error> {
        let others: Vec<u32> =
            value.map_or(Ok(Vec::new()), |list| list.split(',').map(parse_uid).collect())?;
        if others.len() > ALLOW_UID_MAX {
            return Err(bad_setting(format!("it lists more than {ALLOW_UID_MAX} users")));
        }
        let unmapped = || {
            let stand_in = read_to_string("/proc/sys/kernel/overflowuid").ok()?;
            let stand_in = stand_in.trim().parse().ok()?;
            let map = read_to_string("/proc/self/uid_map").ok()?;
            (!is_mapped(&map, stand_in)).then_some(stand_in)
        };
        Ok(Self { own: geteuid().as_raw(), others, unmapped: unmapped() })
    }

    /// Whether this process may connect to us.
    ///
    /// # Errors
    /// The sentence for the one who is refused.
    pub(crate) fn check_origin(&self, origin: &Credentials) -> Result<(), String> {
        self.check(origin, (origin.uid, self.own))
    }

    /// Whether we may connect to this process.
    ///
    /// # Errors
    /// The sentence for our own side.
    pub(crate) fn check_target(&self, target: &Credentials) -> Result<(), String> {
        self.check(target, (self.own, target.uid))
    }

    fn check(&self, peer: &Credentials, (origin, target): (u32, u32)) -> Result<(), String> {
        if self.unmapped == Some(peer.uid) {
            return Err(format!(
                "the other process's user has no number in this user namespace ({} stands for all such users), so that \
                 nobody knows who it is: map that user (user_namespaces(7))",
                peer.uid
            ));
        }
        if peer.uid == self.own || self.others.contains(&peer.uid) {
            return Ok(());
        }
        Err(format!(
            "user {origin} may not connect to a process of user {target}: give the setting `{ALLOW_UID}` to both, \
             `{origin}` to that process and `{target}` to the one that connects"
        ))
    }
}

/// Whether a user has a number in a user namespace, by the text of its `/proc/PID/uid_map`.
fn is_mapped(map: &str, uid: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u64>().unwrap_or(0));
        let (first, _outside, count) = (numbers.next(), numbers.next(), numbers.next());
        let (first, count) = (first.unwrap_or(0), count.unwrap_or(0));
        (first..first.saturating_add(count)).contains(&u64::from(uid))
    })
}

fn parse_uid(text: &str) -> Result<u32, Error> {
    text.trim().parse().map_err(|_| bad_setting(format!("`{}` is no user id", text.escape_debug())))
}

fn bad_setting(why: String) -> Error {
    Error::BadSetting { name: ALLOW_UID.to_owned(), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Credentials {
        Credentials { pid: 1, uid }
    }

    #[test]
    fn only_the_own_user_may_connect_by_default() {
        let policy = Policy::from_setting(None).unwrap();
        let own = geteuid().as_raw();
        policy.check_origin(&user(own)).unwrap();
        let refused = policy.check_origin(&user(own + 1)).unwrap_err();
        let target = policy.check_target(&user(own + 1)).unwrap_err();
        let says = |said: &str, one, other| {
            said.starts_with(&format!("user {one} may not connect to a process of user {other}: "))
        };
        assert!(says(&refused, own + 1, own) && says(&target, own, own + 1), "{refused} {target}");
    }

    #[test]
    fn listed_users_may_connect_too() {
        let own = geteuid().as_raw();
        let list = format!("{}, {}", own + 1, own + 2);
        let policy = Policy::from_setting(Some(&list)).unwrap();
        for uid in own..=own + 2 {
            policy.check_origin(&user(uid)).unwrap();
        }
        policy.check_origin(&user(own + 3)).unwrap_err();
    }

    #[test]
    fn who_has_no_number_here_is_nobody_even_where_the_own_user_is_told_so_too() {
        let policy = |unmapped| Policy { own: 65534, others: vec![65534], unmapped };
        policy(None).check_origin(&user(65534)).unwrap();
        let refused = policy(Some(65534)).check_origin(&user(65534)).unwrap_err();
        assert!(refused.contains("no number in this user namespace"), "{refused}");
        policy(Some(65534)).check_target(&user(65534)).unwrap_err();
    }

    #[test]
    fn a_map_of_users_is_understood() {
        let whole = "         0          0 4294967295\n";
        assert!(is_mapped(whole, 65534) && is_mapped(whole, 0));
        let root_alone = "         0       1000          1\n";
        assert!(is_mapped(root_alone, 0) && !is_mapped(root_alone, 65534));
        let two = "0 1000 1\n65000 100000 1000\n";
        assert!(is_mapped(two, 65534) && !is_mapped(two, 66000));
        assert!(!is_mapped("", 0) && !is_mapped("no numbers", 0));
    }

    #[test]
    fn a_list_that_is_none_is_refused() {
        for list in ["", "root", "1,,2", "-1", "4294967296", &"1,".repeat(65)] {
            let refused = Policy::from_setting(Some(list));
            assert!(matches!(refused, Err(Error::BadSetting { .. })), "{list}");
        }
        assert!(Policy::from_setting(Some(&vec!["1"; 65].join(","))).is_err());
    }
}
