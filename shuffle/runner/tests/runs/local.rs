//! Ranks that the program starts itself.

use serde_json::Value;

use crate::{
    RUNNER,
    common::{File, Outcome, command, has, run},
};

fn local(ranks: u64, arguments: &str) -> Outcome {
    let ranks = ranks.to_string();
    let own = ["--local", &ranks, "--json"];
    let given: Vec<&str> = arguments.split_whitespace().collect();
    run(RUNNER, &[&own[..], &given].concat(), &[])
}

const NETWORK: &str = "--url tcp://127.0.0.1";

#[test]
fn every_message_arrives_once_and_whole_over_every_topology() {
    for (ranks, nodes) in [(1, "1x1"), (4, "2x2"), (4, "3+1"), (3, "1+1+1"), (5, "0,1,2,0,1")] {
        let more = format!("--nodes {nodes} {NETWORK} --count 3000 --warm-up 500");
        let total = local(ranks, &more).total(ranks);
        assert_eq!(total["sent"], ranks * 3000, "{nodes}");
    }
}

#[test]
fn every_skew_every_size_and_unbatched_as_well() {
    let arguments = [
        "--skew loop --count 4000",
        "--skew single --target 2 --count 2000",
        "--skew zipf --exponent 1.5 --count 4000",
        "--size 16 --count 4000",
        "--size 100000 --count 60 --warm-up 5",
        "--size 3000000 --count 4 --warm-up 1",
        "--unbatched --count 1000 --warm-up 100",
        "--lomaxrpc 1 --rmaxrpc 1 --lrmaxrpc 1 --lobuftarget 200 --deliverq-max 1 --count 1000 --warm-up 100",
        "--localsenderlimit 1 --remotesenderlimit 1 --count 2000",
        "--deliverq-max 100 --deliverq-threshold 50 --count 2000",
        "--duration 0.1 --linger 100",
        "--delay 100 --count 100 --warm-up 0",
    ];
    for arguments in arguments {
        let total = local(3, &format!("{arguments} --nodes 2+1 {NETWORK}")).total(3);
        assert!(total["sent"].as_u64() > Some(0), "{arguments}");
    }
}

#[test]
fn hops_latencies_batches_processor_time_and_memory_are_reported() {
    let total =
        local(4, &format!("--nodes 2x2 {NETWORK} --skew loop --count 4000 --warm-up 0")).total(4);
    // Of the four destinations of a rank: itself, its neighbour, and two that are two hops away if one end represents
    // its node there and three, or one, otherwise.
    let hops: Vec<u64> =
        total["hops"].as_array().unwrap().iter().map(|hops| hops.as_u64().unwrap()).collect();
    assert_eq!(hops.iter().sum::<u64>(), 16_000, "{total}");
    assert_eq!(hops[0], 4000, "{total}");
    assert!(hops[1..].iter().all(|hops| *hops >= 2000), "{total}");
    let figure = |name: &str| total[name].as_f64().unwrap();
    let latencies =
        ["latency_p50_us", "latency_p90_us", "latency_p99_us", "latency_max_us"].map(figure);
    assert!(latencies[0] > 0.0 && latencies.is_sorted(), "{total}");
    for name in ["origin_batches", "network_batches", "relay_batches", "peak_rss_kib"] {
        assert!(figure(name) > 0.0, "{name}: {total}");
    }
    // Of the timed run, which is a part of the whole.
    let (timed, whole) = (figure("timed_cpu_seconds"), figure("cpu_seconds"));
    assert!(timed > 0.0 && timed <= whole, "{total}");
    let each = timed * 1e9 / figure("received");
    assert!((figure("cpu_ns_per_message") / each - 1.0).abs() < 1e-6, "{each}: {total}");
}

#[test]
fn messages_to_oneself_are_counted_unless_nobody_sends_any_and_the_table_says_which() {
    let to_self = |total: &Value| total["hops"][0].as_u64().unwrap();
    for skew in ["uniform", "loop", "zipf"] {
        let with = local(3, &format!("--skew {skew} --count 3000")).total(3);
        assert!(to_self(&with) > 0 && with["with_self"] == true, "{with}");
        let without = local(3, &format!("--skew {skew} --count 3000 --self no")).total(3);
        assert_eq!((to_self(&without), &without["with_self"]), (0, &false.into()), "{without}");
        assert_eq!(without["received"], 9000, "{without}");
    }
    for (given, said) in [("yes", "messages to oneself counted"), ("no", "none to oneself")] {
        let outcome = run(RUNNER, &["--local", "2", "--count", "70", "--self", given], &[]);
        let head = outcome.out.lines().next();
        assert!(head.is_some_and(|head| head.contains(said)), "{}", outcome.all());
    }
}

#[test]
fn a_table_ends_with_what_was_verified() {
    let outcome = run(RUNNER, &["--local", "2", "--count", "70"], &[]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.all());
    let last = outcome.out.lines().last();
    let said = "140 messages verified: none lost, repeated or corrupted";
    assert_eq!(last, Some(said), "{}", outcome.all());
}

#[test]
fn a_rank_that_waits_for_the_others_sleeps() {
    let slow = "--nodes 1+1 --skew single --target 1 --delay 2000 --count 150 --warm-up 0";
    let outcome = local(2, &format!("{slow} {NETWORK}"));
    let total = outcome.total(2);
    assert!(total["seconds"].as_f64() > Some(0.5), "{total}");
    for rank in outcome.lines() {
        // All threads of both together: one that ran in circles would take all the time there is.
        assert!(rank["cpu_seconds"].as_f64() < Some(0.4), "{rank}");
    }
}

#[test]
fn a_plan_of_10000_nodes_is_printed_without_a_rank_and_in_little_memory() {
    let plan = ["--as=200000000", RUNNER, "--plan", "10000x32"];
    let outcome = if has("prlimit", "a_plan_of_10000_nodes_is_printed_in_little_memory") {
        run("prlimit", &plan, &[])
    } else {
        run(RUNNER, &plan[2..], &[])
    };
    assert_eq!(outcome.code, Some(0), "{}", outcome.all());
    assert!(outcome.out.starts_with("320000 ranks on 10000 nodes"), "{}", outcome.all());
    let line = |name: &str| outcome.out.lines().find(|line| line.starts_with(name)).expect(name);
    let words = |name: &str| -> Vec<String> {
        line(name).split_whitespace().rev().take(2).map(str::to_owned).collect()
    };
    assert_eq!(words("queues to other nodes"), ["313", "311"]);
    assert_eq!(words("connections inside the node"), ["31", "31"]);
    // 62 queues inside the node and 311 or 313 to others, of 16 batches of 16 KiB, and one that loads.
    assert_eq!(words("messages in full queues, MiB"), ["99.61", "99.08"]);
    // What a simulation of the start counts, 205 s long.
    assert_eq!(words("addresses passed on"), ["10240001", "10240001"]);
    assert!(outcome.out.lines().nth(1).is_some_and(|line| line.ends_with("at most")));
}

#[test]
fn a_plan_in_json_has_the_least_and_the_most_of_each_figure() {
    let outcome = run(RUNNER, &["--plan", "1000x16", "--json"], &[]);
    let plan = &outcome.lines()[0];
    assert_eq!((&plan["ranks"], &plan["nodes"]), (&16_000.into(), &1000.into()));
    assert_eq!(plan["network_queues"], serde_json::json!({ "min": 61, "max": 63 }));
    assert_eq!(plan["message_bytes"]["max"], (30 + 63) * (17 * (16 << 10)));
    let start = plan["start"].as_object().unwrap();
    let least = |name: &str| start[name]["min"].as_u64().unwrap();
    assert!(least("bytes_sent") > 64 * least("addresses_passed_on"), "{plan}");
    assert_eq!(start.len(), 6, "{plan}");
}

#[test]
fn a_plan_says_no_less_than_a_simulation_of_its_start_counts() {
    let outcome = run(RUNNER, &["--plan", "80x16", "--simulate"], &[]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.all());
    assert!(outcome.out.starts_with("1280 ranks on 80 nodes"), "{}", outcome.all());
    let (plan, simulated) = outcome.out.split_once("the start, simulated:").unwrap();
    let number = |line: &str, from_end: usize| -> u64 {
        line.split_whitespace().rev().nth(from_end).unwrap().parse().unwrap()
    };
    let (_, start) = plan.split_once("the start costs the busiest process:").unwrap();
    let figures: Vec<&str> = simulated.lines().skip(1).collect();
    assert_eq!(figures.len(), 6, "{simulated}");
    for counted in figures {
        let name = counted[..34].trim_end();
        let planned = start.lines().find(|line| line.starts_with(name)).expect(name);
        // The busiest process's, in both.
        let (counted, planned) = (number(counted, 1), number(planned, 0));
        assert!(counted > 0 && counted <= planned, "{name}: {counted}, {planned}");
    }
    assert!(plan.contains("messages of others that wait, MiB"), "{plan}");
}

#[test]
fn what_it_costs_to_make_and_check_a_message_is_printed_with_its_unit() {
    for size in ["32", "4096"] {
        let outcome = run(RUNNER, &["--self-check", "--size", size], &[]);
        let rest = format!(" ns to make and check a message of {size} bytes\n");
        let cost = outcome.out.strip_suffix(&rest).and_then(|cost| cost.parse::<f64>().ok());
        assert!(cost.is_some_and(|cost| cost > 0.0), "{}", outcome.all());
    }
    let refused = run(RUNNER, &["--self-check", "--size", "3"], &[]);
    assert!(
        refused.code == Some(1) && refused.err.contains("--size: at least 16"),
        "{}",
        refused.all()
    );
}

#[test]
fn a_rank_keeps_to_twenty_mebibytes_beside_its_queues() {
    let total = local(4, &format!("--nodes 2x2 {NETWORK} --count 50000 --warm-up 1000")).total(4);
    let options = hg_shuffle::Options::default();
    let map = "2x2".parse().unwrap();
    let plan = hg_shuffle::route::Process::new(&map, 0, &options);
    // And what waits for delivery, messages with their heads.
    let delivery = options.deliverq_bytes_max.min(options.deliverq_max * (32 + 16)) as u64;
    let most = (20 << 10) + (plan.bytes + delivery) / 1024;
    assert!(total["peak_rss_kib"].as_u64() <= Some(most), "{most} KiB: {total}");
}

#[test]
fn bad_arguments_give_one_clear_sentence_and_start_nothing() {
    let cases = [
        ("2", "--size 3", "--size: at least 16 bytes: a number, an origin and a checksum"),
        ("2", "--skew single --target 9", "--target: there is no rank 9: the job has 2"),
        ("3", "--nodes 2x2", "the node map is for 4 ranks, but the job has 3"),
        ("2", "--lomaxrpc 0", "option `lomaxrpc`: 0 is not between 1 and 1024"),
        ("2", "--deliverq-max 5 --deliverq-threshold 5", "option `deliverq_threshold`: "),
        ("2", "--duration -1", "--duration: "),
        ("2", "--duration NaN", "--duration: "),
        ("2", "--exponent inf", "--exponent: "),
        ("2", "--setting bound", "--setting: `bound` is not NAME=VALUE"),
        ("2", "--target 1", "--target: goes with `--skew single` only"),
        ("2", "--exponent 2 --skew loop", "--exponent: goes with `--skew zipf` only"),
        ("1", "--self no", "--self: a rank alone has nobody else to send to"),
        (
            "2",
            "--self no --skew single",
            "--self: `--skew single` sends to one rank, also from itself",
        ),
        ("0", "", "0 is no number of ranks"),
        ("100000", "", "--local: 100000 ranks need "),
    ];
    for (ranks, arguments, sentence) in cases {
        let own = ["--local", ranks];
        // A value that begins like an option is joined to its own.
        let joined = arguments.replace("--duration ", "--duration=");
        let given: Vec<&str> = joined.split_whitespace().collect();
        let outcome = run(RUNNER, &[&own[..], &given].concat(), &[]);
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(1), ""), "{}", outcome.all());
        assert_eq!(outcome.err.lines().count(), 1, "{}", outcome.err);
        assert!(
            outcome.err.starts_with("shuffle-runner: ") && outcome.err.contains(sentence),
            "{}",
            outcome.err
        );
    }
    for wrong in [
        &["--nodes", "2y2"][..],
        &["--skew", "odd"],
        &["--count", "1", "--duration", "1"],
        &["--force"],
        &["--plan", "2x2", "--count", "1"],
        &["--plan", "2x2", "--local", "4"],
        &["--plan", "2x2", "--url", "tcp://"],
    ] {
        let outcome = run(RUNNER, wrong, &[]);
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(2), ""), "{}", outcome.all());
        let is_one = outcome.err.lines().count() == 1 && outcome.err.contains("--help` says");
        assert!(is_one && outcome.err.starts_with("shuffle-runner: "), "{}", outcome.err);
    }
}

#[test]
fn more_ranks_than_there_are_descriptors_for_start_when_that_is_insisted_on() {
    const NAME: &str = "more_ranks_than_there_are_descriptors_for_start_when_that_is_insisted_on";
    if !has("prlimit", NAME) {
        return;
    }
    let more = ["--local", "3", "--count", "10"];
    let limited = [&["--nofile=44", RUNNER][..], &more].concat();
    let refused = run("prlimit", &limited, &[]);
    assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""), "{}", refused.all());
    assert!(
        refused.err.contains("which may have 44 (ulimit -Hn), so about 2 ranks"),
        "{}",
        refused.err
    );
    let forced = run(RUNNER, &[&more[..], &["--force"]].concat(), &[]);
    assert_eq!(forced.code, Some(0), "{}", forced.all());
}

#[test]
fn the_help_names_the_default_of_every_option_of_the_shuffle() {
    let outcome = run(RUNNER, &["--help"], &[]);
    let usual = hg_shuffle::Options::default();
    let defaults = [
        ("local-url", usual.local_url),
        ("url", usual.network_url),
        ("localsenderlimit", usual.localsenderlimit.to_string()),
        ("remotesenderlimit", usual.remotesenderlimit.to_string()),
        ("lomaxrpc", usual.lomaxrpc.to_string()),
        ("lomaxbytes", usual.lomaxbytes.to_string()),
        ("lobuftarget", usual.lobuftarget.to_string()),
        ("lrmaxrpc", usual.lrmaxrpc.to_string()),
        ("lrmaxbytes", usual.lrmaxbytes.to_string()),
        ("lrbuftarget", usual.lrbuftarget.to_string()),
        ("rmaxrpc", usual.rmaxrpc.to_string()),
        ("rmaxbytes", usual.rmaxbytes.to_string()),
        ("rbuftarget", usual.rbuftarget.to_string()),
        ("deliverq-max", usual.deliverq_max.to_string()),
        ("deliverq-bytes-max", usual.deliverq_bytes_max.to_string()),
        ("deliverq-threshold", usual.deliverq_threshold.to_string()),
        ("linger", usual.linger.as_micros().to_string()),
    ];
    for (name, default) in defaults {
        let (_, rest) = outcome.out.split_once(&format!("--{name} <")).expect(name);
        let own = rest.split("\n      --").next().unwrap();
        assert!(own.contains(&format!("[default: {default}]")), "{name}: {own}");
    }
}

#[test]
fn a_warm_up_is_no_longer_than_what_it_warms_up_for_and_is_not_counted() {
    // By default the warm-up would be 10,000 messages.
    let few = local(2, "--skew loop --count 6").total(2);
    let none = local(2, "--skew loop --count 6 --warm-up 0 --linger 1000000").total(2);
    let many = local(2, "--skew loop --count 6 --warm-up 5000 --linger 1000000").total(2);
    for name in ["origin_messages", "relay_messages", "network_messages", "hops"] {
        assert_eq!(none[name], many[name], "{name}: {none}\n{many}");
        assert_eq!(none[name], few[name], "{name}: {none}\n{few}");
    }
    assert_eq!(many["origin_batches"], 2, "one for each rank: {many}");
}

#[test]
fn a_reader_that_has_enough_is_no_error() {
    for of in [&["--plan", "4x4"][..], &["--local", "2", "--count", "10"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(RUNNER, of).stdout(writer).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.as_ref()), (Some(0), ""), "{of:?}");
    }
}

#[test]
fn whom_a_rank_waits_for_is_said_long_before_it_gives_up() {
    let folder = File::new("rendezvous");
    std::fs::create_dir(&folder.0).unwrap();
    let at = format!("dir:{}", folder.text());
    // A quarter of a minute would be five seconds; here, half of what there is.
    let alone = |rank: &str| {
        let place = [("HG_JOB_RENDEZVOUS", at.as_str()), ("HG_JOB_RANK", rank)];
        let rest = [("HG_JOB_SIZE", "3"), ("HG_JOB_TIMEOUT_S", "0.5")];
        run(RUNNER, &["--count", "1"], &[place, rest].concat())
    };
    let cases = [
        ("0", "shuffle-runner: ranks 1 and 2 of 3 did not join yet: still waiting\n"),
        ("1", "/hg-job-hub yet: still waiting\n"),
    ];
    for (rank, sentence) in cases {
        let outcome = alone(rank);
        assert_eq!(outcome.code, Some(1), "{}", outcome.all());
        let (notice, end) = outcome.err.split_once("still waiting\n").expect(&outcome.err);
        assert!(outcome.err.contains(sentence) && notice.lines().count() == 1, "{}", outcome.err);
        assert!(end.contains("did not join within 500ms"), "{}", outcome.err);
    }
}

#[test]
fn a_transport_that_cannot_be_opened_is_named_once_however_many_nodes_there_are() {
    let cases = [
        ("--url nothing://", "shuffle-runner: --url: nothing://: "),
        ("--local-url nothing://", "shuffle-runner: --local-url: nothing://: "),
        ("--setting sleep=well", "shuffle-runner: --setting: "),
        ("--url tcp://127.0.0.1 --setting silence-bound-ms=never", "shuffle-runner: --setting: "),
    ];
    for (arguments, sentence) in cases {
        for nodes in ["2x1", "1x2"] {
            let given = format!("{arguments} --nodes {nodes}");
            let outcome = local(2, &given);
            assert_eq!((outcome.code, outcome.out.as_str()), (Some(1), ""), "{}", outcome.all());
            assert_eq!(outcome.err.lines().count(), 1, "{given}: {}", outcome.all());
            assert!(outcome.err.starts_with(sentence), "{given}: {}", outcome.all());
        }
    }
}

#[test]
fn ranks_of_a_launcher_say_once_what_is_wrong_with_all_of_them() {
    let folder = File::new("once");
    std::fs::create_dir(&folder.0).unwrap();
    let at = format!("dir:{}", folder.text());
    for (wrong, sentence, status) in [
        ("--url nothing://", "shuffle-runner: --url: nothing://: ", 1),
        ("--size 3", "shuffle-runner: --size: ", 1),
        ("--colour", "shuffle-runner: unexpected argument '--colour' found", 2),
    ] {
        let rank = |rank| format!("HG_JOB_RANK={rank} {RUNNER} {wrong} & p{rank}=$!;");
        let wait = |rank| format!("wait $p{rank}; echo ended $?;");
        let ranks = [0, 1, 2];
        let script = ranks.map(rank).concat() + &ranks.map(wait).concat();
        let place = [("HG_JOB_RENDEZVOUS", at.as_str()), ("HG_JOB_SIZE", "3")];
        let outcome = run("sh", &["-c", &script], &place);
        assert_eq!(outcome.out, format!("ended {status}\n").repeat(3), "{}", outcome.all());
        assert_eq!(outcome.err.lines().count(), 1, "{}", outcome.all());
        assert!(outcome.err.starts_with(sentence), "{}", outcome.all());
    }
}

#[test]
fn of_a_launcher_s_ranks_the_first_one_prints_help_and_waits_for_no_other() {
    // Nothing is there to meet at, and most ranks are missing.
    let place = [("HG_JOB_RENDEZVOUS", "dir:/nowhere"), ("HG_JOB_SIZE", "3")];
    for asked in ["--help", "-h", "--version"] {
        for (rank, prints) in [("0", true), ("2", false)] {
            let variables = [&place[..], &[("HG_JOB_RANK", rank)]].concat();
            let outcome = run(RUNNER, &[asked], &variables);
            assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""), "{asked}");
            assert_eq!(!outcome.out.is_empty(), prints, "{asked}: {}", outcome.all());
        }
        // Alone, or where nobody can tell.
        assert_ne!(run(RUNNER, &[asked], &[]).out, "");
        assert_ne!(run(RUNNER, &[asked], &place).out, "");
    }
}

#[test]
fn rate_and_queues_are_drawn() {
    let file = File::new("plot.svg");
    local(2, &format!("--duration 0.2 --nodes 1+1 {NETWORK} --plot {}", file.text())).total(2);
    let text = std::fs::read_to_string(&file.0).unwrap();
    assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"), "{text}");
    for name in ["all ranks", "origin queues", "network queues", "relay queues", "delivery"] {
        assert!(text.contains(&format!(">{name}</text>")), "{name}: {text}");
    }
    assert_eq!(text.matches("<polyline").count(), 5);
    // Something was delivered: the highest point of the rate is at the top of its panel.
    assert!(text.contains(",20.0"), "{text}");
}

#[test]
fn a_plot_that_cannot_be_written_is_known_before_the_run_and_costs_no_figures_after_it() {
    let nowhere = local(2, "--count 10 --plot no-such-folder/plot.svg");
    assert_eq!((nowhere.code, nowhere.out.as_str()), (Some(1), ""), "{}", nowhere.all());
    let said = "shuffle-runner: --plot: no-such-folder/plot.svg cannot be written: ";
    let is_all = nowhere.err.starts_with(said) && nowhere.err.lines().count() == 1;
    assert!(is_all, "{}", nowhere.all());
    // A job of one, which nobody starts: it looks by itself.
    let alone = run(RUNNER, &["--count", "10", "--plot", "no-such-folder/plot.svg"], &[]);
    assert_eq!((alone.code, alone.out.as_str()), (Some(1), ""), "{}", alone.all());
    assert!(alone.err.starts_with(said), "{}", alone.all());
    // It can be opened, and holds nothing.
    let full = local(2, "--count 10 --plot /dev/full");
    assert_ne!(full.code, Some(0), "{}", full.all());
    assert!(full.err.contains("--plot: /dev/full cannot be written: "), "{}", full.all());
    assert_eq!(full.lines().len(), 3, "{}", full.all());
}

#[test]
fn a_terminal_shows_how_far_rank_0_is_and_a_pipe_does_not() {
    assert!(!local(2, "--duration 0.1").err.contains('['));
    if !has("script", "a_terminal_shows_how_far_rank_0_is_and_a_pipe_does_not") {
        return;
    }
    let shell = format!("{RUNNER} --local 2 --duration 0.2 --json");
    let outcome = run("script", &["-qec", &shell, "/dev/null"], &[]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.all());
    assert!(outcome.out.contains("\r[") && outcome.out.contains("100 %"), "{}", outcome.all());
    let debug = "this is a debug build: its figures mean nothing; build with --release\r\n";
    let said = outcome.out.matches(debug).count();
    assert_eq!(said, usize::from(cfg!(debug_assertions)), "{}", outcome.all());
    assert_eq!(outcome.out.starts_with(debug), cfg!(debug_assertions), "{}", outcome.all());
    let last: Value = serde_json::from_str(outcome.out.trim_end().lines().last().unwrap()).unwrap();
    assert_eq!(last["lost"], 0);
}
