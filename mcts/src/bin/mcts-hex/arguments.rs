//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Parser, ValueEnum};
use hg_mcts::{
    Budget, Game as _, Instructions, Parallelism, Placement, Search, Settings, Team, VirtualLoss,
    hex::Hex,
};

/// Plays Hex by Monte-Carlo tree search.
///
/// The first player joins top and bottom, the second one left and right. Moves are a letter for the column and a number
/// for the row: `a1` is the top left.
///
/// Started by `mpirun` or `srun`, or with `--local`, all processes search together; the first one reads, and prints.
#[derive(Clone, Debug, Parser)]
#[command(name = "mcts-hex", version, allow_negative_numbers = true)]
pub(crate) struct Arguments {
    /// What to do; `best` where nothing is said
    #[arg(value_enum)]
    command: Option<Command>,
    /// The moves that lead to the position: `a2 c3`, `a2,c3` or `a2c3`; `swap` is one of them
    #[arg(value_name = "MOVES")]
    moves: Vec<String>,
    /// Speaks GTP, version 2, on standard input and output
    #[arg(long, conflicts_with_all = ["bench", "command", "json", "progress"])]
    pub(crate) gtp: bool,
    /// Measures playouts and searches
    #[arg(long, conflicts_with_all = ["time", "rollouts", "parallel", "progress"])]
    pub(crate) bench: bool,

    /// Rows, and columns, from 2 to 19
    #[arg(long, default_value_t = 11, value_name = "N")]
    pub(crate) size: u8,
    /// The second player may take over the first stone
    #[arg(long)]
    pub(crate) swap: bool,
    #[command(flatten)]
    pub(crate) search: SearchArguments,

    /// Searches with N processes, which it starts on this machine; `mpirun` or `srun` start them on several
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) local: Option<u32>,
    /// Transport between the processes: `sm://` where all of them are on one node, else `tcp://`
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,

    /// `match`: how many games; an even number, since each opening is played by both [default: 20]
    #[arg(long, value_name = "N")]
    games: Option<u32>,
    /// `match`: how the opponent's search differs, such as `threads=2,parallel=tree` or `time=2`
    #[arg(long, value_name = "NAME=VALUE,...")]
    against: Option<String>,
    /// `play`: the program moves first
    #[arg(long)]
    pub(crate) second: bool,

    /// Prints JSON; not for `play`
    #[arg(long)]
    pub(crate) json: bool,
    /// `best`, `analyze`: draws the board with the visits of its moves, and simulations over time
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Says on standard error every second how far a search has come
    #[arg(long)]
    pub(crate) progress: bool,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Command {
    /// Prints the best move
    Best,
    /// Prints what is known about each move, and about the search
    Analyze,
    /// Plays both sides to the end
    SelfPlay,
    /// Plays games between two settings
    Match,
    /// Plays against whoever types
    Play,
}

/// How a search is made.
#[derive(Clone, Debug, Parser)]
#[command(args_override_self = true, allow_negative_numbers = true)]
pub(crate) struct SearchArguments {
    /// Time for each move; one second where no --rollouts are given
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
    /// Rollouts for each move
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rollouts: Option<u64>,
    /// Threads, of each process
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Searches with the first process of a job alone, such as one side of a match
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    alone: bool,
    /// `merged`: a tree for each thread, whose upper nodes are merged all the time; `tree`: one for all; `root`: one for each
    /// [default: merged]
    #[arg(long, value_parser = parallelism, value_name = "merged|tree|root")]
    parallel: Option<Parallelism>,
    /// With `--parallel tree`, which thread owns a node: any; the one that the position's hash names; any for the first N moves, then
    /// the parent's. `hash` makes equal positions one node, also in other trees [default: local:1]
    #[arg(long, value_parser = placement, value_name = "random|hash|local:N")]
    placement: Option<Placement>,
    /// With `--parallel tree`, what rollouts under way count as: visits; W times as many losses; unobserved samples
    /// [default: unobserved]
    #[arg(long, value_parser = virtual_loss, value_name = "count|loss:W|unobserved")]
    virtual_loss: Option<VirtualLoss>,
    /// Simulations for each leaf
    #[arg(long, default_value_t = 16, value_name = "N")]
    simulations: u32,
    /// With `--parallel tree`, rollouts under way at a time, where threads are several [default: 512]
    #[arg(long, value_name = "N")]
    window: Option<u32>,
    /// The constant of UCB1
    #[arg(long, default_value_t = Settings::default().exploration, value_name = "C")]
    exploration: f32,
    /// Bytes for the tree, of each process, with k, M or G behind the number; the program ends where the system gives less (`ulimit -v`)
    #[arg(long, default_value = "1G", value_parser = bytes, value_name = "BYTES")]
    memory: usize,
    /// Of all random numbers
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Which instructions are used; the best that there are where none are given
    #[arg(long, value_parser = instructions, value_name = "portable|avx2|avx512")]
    instructions: Option<Instructions>,
    /// A process of a job that stands still for so long is named, and the search ends
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = seconds)]
    patience: Duration,
}

impl Arguments {
    pub(crate) fn command(&self) -> Command {
        self.command.unwrap_or(Command::Best)
    }

    pub(crate) fn with_size(&self, size: u8) -> Self {
        Self { size, ..self.clone() }
    }

    pub(crate) fn games(&self) -> u32 {
        self.games.unwrap_or(20)
    }

    pub(crate) fn against(&self) -> &str {
        self.against.as_deref().unwrap_or_default()
    }

    /// What is wrong about them, as far as that can be known before any process is started.
    pub(crate) fn check(&self) -> Result<(), String> {
        if let Some(name) = self.idle() {
            let command = self.command().to_possible_value().expect("none is hidden");
            let bench = if self.bench { "bench" } else { command.get_name() };
            return Err(format!("--{name}: has no effect with `{bench}`"));
        }
        let is_match = !self.gtp && self.command() == Command::Match;
        if self.position()?.outcome().is_some() && is_match {
            return Err("match: the game is over after these moves".to_owned());
        }
        if self.games() == 0 || self.games() % 2 == 1 {
            return Err(
                "--games: an even number of them, since each opening is played twice".to_owned()
            );
        }
        if let Some(processes) = self.local {
            let all = u64::from(processes) * u64::from(self.search.threads_of_team()?);
            if all > u64::from(u16::MAX) {
                return Err(format!(
                    "--local {processes}: {all} threads in all, and there may be {}",
                    u16::MAX
                ));
            }
        } else if self.bench && self.search.threads > 1 {
            return Err("--threads: `--bench` without `--local` has threads of its own".to_owned());
        }
        if self.bench {
            return Ok(());
        }
        self.search.check()?;
        if is_match { self.opponent().map(drop) } else { Ok(()) }
    }

    /// An option that is of no use here.
    fn idle(&self) -> Option<&'static str> {
        let command = self.command();
        let (is_match, plays) = (command == Command::Match, command == Command::Play);
        let analyzes = matches!(command, Command::Best | Command::Analyze);
        let bench = self.bench || self.gtp;
        [
            ("games", self.games.is_some() && (bench || !is_match)),
            ("against", self.against.is_some() && (bench || !is_match)),
            ("second", self.second && (bench || !plays)),
            ("plot", self.plot.is_some() && (bench || !analyzes)),
            ("json", self.json && plays && !bench),
        ]
        .into_iter()
        .find_map(|(name, is_idle)| is_idle.then_some(name))
    }

    /// The position that the moves lead to.
    pub(crate) fn position(&self) -> Result<Hex, String> {
        let mut board = self.empty_board()?;
        board.play_all(&self.moves.join(" ")).map_err(|error| error.to_string())?;
        Ok(board)
    }

    pub(crate) fn empty_board(&self) -> Result<Hex, String> {
        let board = Hex::new(self.size).map_err(|error| error.to_string())?;
        Ok(if self.swap { board.with_swap() } else { board })
    }

    /// The transport between processes on so many nodes.
    pub(crate) fn transport(&self, nodes: u32) -> &str {
        self.url.as_deref().unwrap_or(if nodes == 1 { "sm://" } else { "tcp://" })
    }

    /// How the opponent searches in a match.
    pub(crate) fn opponent(&self) -> Result<SearchArguments, String> {
        let pairs = self.against().split(',').filter(|it| !it.is_empty());
        let pairs: Vec<String> = pairs.map(|pair| format!("--{pair}")).collect();
        let wrong = |why: &str| format!("--against {}: {why}", self.against());
        let parse = |words: Vec<String>| {
            let words = words.iter().chain(&pairs);
            SearchArguments::try_parse_from(words).map_err(|error| wrong(&first_line(&error)))
        };
        let own = parse(vec!["mcts-hex".to_owned()])?;
        let mut all = parse(self.search.words())?;
        if own.time.is_some() || own.rollouts.is_some() {
            (all.time, all.rollouts) = (own.time, own.rollouts);
        }
        if !all.has_one_tree() {
            // What has an effect only on this side is not the opponent's.
            (all.virtual_loss, all.window) = (own.virtual_loss, own.window);
            let of_all = |it: &Placement| *it == Placement::Hash;
            all.placement = own.placement.or(all.placement.filter(of_all));
        }
        all.check().map_err(|why| wrong(&why.replace("--", "")))?;
        Ok(all)
    }
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).replace("--", "")
}

impl SearchArguments {
    pub(crate) fn budget(&self) -> Budget {
        let time = self.time.or(self.rollouts.is_none().then_some(Duration::from_secs(1)));
        Budget { rollouts: self.rollouts, time }
    }

    fn parallel(&self) -> Parallelism {
        self.parallel.unwrap_or(Settings::default().parallelism)
    }

    fn has_one_tree(&self) -> bool {
        self.parallel() == Parallelism::Tree
    }

    /// Refuses what would be ignored.
    fn check(&self) -> Result<(), String> {
        let owns = self.placement.is_some_and(|it| it != Placement::Hash);
        let given = [
            ("placement", owns),
            ("virtual-loss", self.virtual_loss.is_some()),
            ("window", self.window.is_some()),
        ];
        if let Some((name, _)) =
            given.iter().find(|(_, is_given)| *is_given && !self.has_one_tree())
        {
            return Err(format!(
                "--{name}: has no effect with `--parallel {}`, where each thread has a tree; `--parallel tree` has one for all",
                format!("{:?}", self.parallel()).to_lowercase()
            ));
        }
        let least = Hex::new(2).map_err(|error| error.to_string())?;
        Search::new(least, self.settings()).map(drop).map_err(|error| error.to_string())
    }

    /// A search by the team, where there is one.
    pub(crate) fn start(
        &self,
        team: Option<&Team<Hex>>,
        position: Hex,
    ) -> Result<Search<Hex>, String> {
        let search = match team.filter(|_| !self.alone) {
            None => Search::new(position, self.settings()),
            Some(team) if team.threads() == self.threads => {
                Search::by(team, position, self.settings())
            }
            Some(team) => {
                return Err(format!(
                    "--threads {}: a search that is not `alone` has {} in each process of this job",
                    self.threads,
                    team.threads()
                ));
            }
        };
        search.map_err(|error| error.to_string())
    }

    pub(crate) fn threads_of_team(&self) -> Result<u8, String> {
        let bounds = || format!("--threads {}: from 1 to 255 in each process", self.threads);
        u8::try_from(self.threads).ok().filter(|it| *it > 0).ok_or_else(bounds)
    }

    pub(crate) fn with_seed(&self, seed: u64) -> Self {
        Self { seed, ..self.clone() }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn settings(&self) -> Settings {
        let defaults = Settings::default();
        Settings {
            workers: self.threads,
            parallelism: self.parallel(),
            placement: self.placement.unwrap_or(defaults.placement),
            virtual_loss: self.virtual_loss.unwrap_or(defaults.virtual_loss),
            simulations: self.simulations,
            window: self.window.unwrap_or(defaults.window),
            exploration: self.exploration,
            memory: self.memory,
            seed: self.seed,
            instructions: self.instructions.unwrap_or_else(Instructions::best),
            patience: self.patience,
        }
    }

    /// A command line that means the same; what stands behind it overrides it.
    fn words(&self) -> Vec<String> {
        let pairs = self.pairs().into_iter().map(|(name, value)| format!("--{name}={value}"));
        ["mcts-hex".to_owned()].into_iter().chain(pairs).collect()
    }

    /// Names and values of what has an effect.
    pub(crate) fn pairs(&self) -> Vec<(&'static str, String)> {
        let settings = self.settings();
        let placement = match settings.placement {
            Placement::Random => "random".to_owned(),
            Placement::Hash => "hash".to_owned(),
            Placement::Local(moves) => format!("local:{moves}"),
        };
        let virtual_loss = match settings.virtual_loss {
            VirtualLoss::Count => "count".to_owned(),
            VirtualLoss::Loss(weight) => format!("loss:{weight}"),
            VirtualLoss::Unobserved => "unobserved".to_owned(),
        };
        let mut pairs = vec![
            ("threads", self.threads.to_string()),
            ("alone", self.alone.to_string()),
            ("parallel", format!("{:?}", settings.parallelism).to_lowercase()),
            ("simulations", self.simulations.to_string()),
            ("exploration", self.exploration.to_string()),
            ("memory", self.memory.to_string()),
            ("seed", self.seed.to_string()),
            ("instructions", format!("{:?}", settings.instructions).to_lowercase()),
            ("patience", self.patience.as_secs_f64().to_string()),
        ];
        if self.has_one_tree() || settings.placement == Placement::Hash {
            pairs.push(("placement", placement));
        }
        if self.has_one_tree() {
            pairs.push(("virtual-loss", virtual_loss));
            pairs.push(("window", settings.window.to_string()));
        }
        pairs.extend(self.time.map(|time| ("time", time.as_secs_f64().to_string())));
        pairs.extend(self.rollouts.map(|rollouts| ("rollouts", rollouts.to_string())));
        pairs
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "not a time".to_owned())
}

fn parallelism(text: &str) -> Result<Parallelism, String> {
    match text {
        "tree" => Ok(Parallelism::Tree),
        "root" => Ok(Parallelism::Root),
        "merged" => Ok(Parallelism::Merged),
        _ => Err("neither merged, tree nor root".to_owned()),
    }
}

fn placement(text: &str) -> Result<Placement, String> {
    match text.split_once(':') {
        None if text == "random" => Ok(Placement::Random),
        None if text == "hash" => Ok(Placement::Hash),
        Some(("local", moves)) => {
            moves.parse().map(Placement::Local).map_err(|_| "not a number of moves".to_owned())
        }
        _ => Err("neither random, hash nor local:N".to_owned()),
    }
}

fn virtual_loss(text: &str) -> Result<VirtualLoss, String> {
    match text.split_once(':') {
        None if text == "count" => Ok(VirtualLoss::Count),
        None if text == "unobserved" => Ok(VirtualLoss::Unobserved),
        Some(("loss", weight)) => {
            weight.parse().map(VirtualLoss::Loss).map_err(|_| "not a weight".to_owned())
        }
        _ => Err("neither count, loss:W nor unobserved".to_owned()),
    }
}

fn bytes(text: &str) -> Result<usize, String> {
    let (number, shift) = match text.strip_suffix(['k', 'K']) {
        Some(number) => (number, 10),
        None => match (text.strip_suffix('M'), text.strip_suffix('G')) {
            (Some(number), _) => (number, 20),
            (_, Some(number)) => (number, 30),
            _ => (text, 0),
        },
    };
    let number: usize = number.parse().map_err(|_| "not a number of bytes".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "more than there is".to_owned())
}

fn instructions(text: &str) -> Result<Instructions, String> {
    match text {
        "portable" => Ok(Instructions::Portable),
        "avx2" => Ok(Instructions::Avx2),
        "avx512" => Ok(Instructions::Avx512),
        _ => Err("neither portable, avx2 nor avx512".to_owned()),
    }
}
