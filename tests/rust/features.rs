//! What `Context` and the modules beside it do, for comparison with the Python SDK (`features.py`), and what goes
//! wrong.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use inferlet::*;

mod meanwhile;
mod midway;
mod named;
mod received;
mod tried;

inferlet::main!(entry);

const PROMPT: &str = "Once upon a time, there was a";

async fn entry(args: Args) -> Result<Json, Caused> {
    main(args).await.map_err(Caused)
}

/// An error that tells its cause where it is asked for it, as those of the crate `anyhow` do.
struct Caused(Error);

impl fmt::Display for Caused {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = if to.alternate() && self.0.message == "caused" { ": by this" } else { "" };
        write!(to, "{}{}", self.0, cause)
    }
}

async fn main(args: Args) -> Result<Json> {
    let what: String = args.required("what")?;
    if what == "bound" {
        return Ok(bound(&args).unwrap_or_else(|error| error.message.into()));
    }
    let mut ctx = Context::new(args.model())?;
    ctx.fill(PROMPT);
    match what.as_str() {
        "stop" => {
            let mut generation = ctx.generate(40).stop(" na");
            let mut pieces = String::new();
            while let Some(piece) = generation.next().await? {
                pieces += &piece;
            }
            let reason = generation.stop_reason().map_or("", |reason| reason.as_str());
            drop(generation);
            let followed = ctx.fork()?.generate(40).stop(",").text().await?;
            Ok(list([pieces.into(), reason.into(), ctx.text()?.into(), followed.into()]))
        }
        "sampled" => {
            let sampler = Sampler { seed: Some(7), top_p: 0.9, ..Sampler::default() };
            let penalized = Sampler { repetition_penalty: 1.3, ..Sampler::greedy() };
            let first = ctx.fork()?.generate(12).sampler(sampler.clone()).text().await?;
            let second = ctx.fork()?.generate(12).sampler(penalized).step_by_step().text().await?;
            let third = ctx.fork()?.generate(12).choose(4, 1.0, |dist| dist.tokens[1]).text().await?;
            Ok(list([first.into(), second.into(), third.into(), ctx.sample(&sampler).await?.into()]))
        }
        "drafted" => {
            ctx.fill(" dog. The dog ran. The dog");
            let plain = ctx.fork()?.generate(30).text().await?;
            let drafted = ctx.generate(30).draft(prompt_lookup(3, 8)).text().await?;
            let sampler = Sampler { seed: Some(7), ..Sampler::default() };
            let mut found = vec![plain.into(), drafted.into(), ctx.text()?.into()];
            for is_kept in [false, true] {
                let mut fork = ctx.fork()?;
                let generation = fork.generate(20).sampler(sampler.clone()).draft(prompt_lookup(3, 8));
                let mut generation = if is_kept { generation.regex("(.|\\n)*") } else { generation };
                let mut text = String::new();
                while let Some(piece) = match first(generation.next(), std::future::ready(())).await {
                    First::This(piece) => piece?,
                    First::Other(()) => generation.next().await?, // a wait that was dropped has lost nothing
                } {
                    text += &piece;
                }
                found.push(text.into());
            }
            Ok(Json::List(found))
        }
        "constrained" => {
            let schema = r#"{"type": "object", "required": ["name", "age"], "properties":
                {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}}}"#;
            let object = ctx.fork()?.generate(40).schema(schema).text().await?;
            let mut fork = ctx.fork()?;
            let mut matched = fork.generate(40).regex("( cat| dog){2}");
            while matched.next().await?.is_some() {}
            let reason = matched.stop_reason().map_or("", |reason| reason.as_str());
            drop(matched);
            Ok(list([object.into(), fork.text()?.into(), reason.into()]))
        }
        "cut" => {
            ctx.generate(30).text().await?;
            ctx.truncate(20)?;
            let mut windowed = ctx.fork()?;
            windowed.drop_tokens(4, 12, false)?;
            let hidden = windowed.generate(8).text().await?;
            windowed.fork()?.truncate(10).err().ok_or("it was allowed")?;
            Ok(list([hidden.into(), ctx.generate(8).text().await?.into(), ctx.restarted(5)?.text()?.into()]))
        }
        "windowed" => {
            for _ in 0..4 {
                ctx.generate(16).ignore_stop_tokens().text().await?;
                let _kept = ctx.fork()?; // has the pages, too
                ctx.window(24, 3)?;
            }
            let mut cut = ctx.fork()?;
            cut.truncate(50)?;
            Ok(list([ctx.generate(8).text().await?.into(), ctx.text()?.into(), cut.generate(8).text().await?.into()]))
        }
        "joined" => {
            let mut first = Context::new(args.model())?;
            first.fill("The bee and the fox met by the mill.");
            let moved = Context::join([&mut first, &mut ctx])?.generate(8).text().await?;
            let length = ctx.tokens()?.len();
            let mut other = Context::with(args.model(), "", length)?;
            other.fill(" small girl with a red");
            let mut joined = Context::join([&mut ctx, &mut other])?;
            let text = joined.generate(8).text().await?;
            let mut far = Context::with(args.model(), "", length + 40)?;
            far.fill(" small girl with a red");
            let mut cut = Context::join([&mut ctx, &mut far])?; // goes on where the first part ends
            cut.truncate(length)?;
            let cut = cut.generate(8).text().await?;
            let mut gap = Context::join([&mut ctx, &mut far])?;
            let again = Context::join([&mut first, &mut gap])?.generate(8).text().await?;
            let rest = other.generate(4).text().await?;
            Ok(list([moved.into(), text.into(), joined.text()?.into(), rest.into(), cut.into(), again.into()]))
        }
        "exported" => {
            ctx.export("features").await?;
            let mut opened = Context::open("features", args.model(), "").await?;
            let missing = Context::open("nothing", args.model(), "").await.err().map(|error| error.code);
            assert_eq!(missing, Some(Code::NotFound));
            Ok(list([opened.generate(8).text().await?.into(), ctx.generate(8).text().await?.into()]))
        }
        "scored" => {
            let tokens = ctx.model().tokenize(" little girl", true)?;
            let scores = ctx.score(&tokens).await?;
            let many: f32 = ctx.score(&tokens.repeat(40)).await?.iter().sum();
            let dist = ctx.next_dist(3, 1.0).await?;
            let tokens = dist.tokens.iter().map(|token| (*token).into()).collect();
            let sampler = Sampler { seed: Some(1), ..Sampler::default() };
            let (mut fork, is_first) = (ctx.fork()?, Cell::new(true));
            let judge = |_: &str| if is_first.replace(false) { f64::NAN } else { 1.0 };
            let unclear = fork.best_of(3, 1, &sampler, judge).await?;
            assert!(unclear[2].score.is_nan());
            let best = ctx.best_of(3, 6, &sampler, |text| text.len() as f64).await?;
            let best = best.into_iter().map(|one| one.text.into()).collect();
            let total: f32 = scores.iter().sum();
            let (total, many) = ((total * 1000.0).round() as i64, many.round() as i64);
            Ok(list([total.into(), many.into(), Json::List(tokens), Json::List(best)]))
        }
        "together" => {
            let mut forks = (0..12).map(|_| ctx.fork()).collect::<Result<Vec<Context>>>()?;
            let texts = try_join_all(forks.iter_mut().map(|fork| fork.generate(6).text())).await?;
            let slept = timeout(Duration::from_millis(20), sleep(Duration::from_secs(60))).await;
            assert_eq!(slept.unwrap_err().code, Code::TimedOut);
            Ok(Json::List(texts.into_iter().map(Json::from).collect()))
        }
        "stepped" => {
            let mut chosen = Vec::new();
            for _ in 0..40 {
                let dist = ctx.next_dist(5, 1.0).await?;
                ctx.fill_tokens(&dist.tokens[..1])?;
                chosen.push(dist.max_index().into());
                if chosen.len() == 20 {
                    ctx.fork()?.generate(3).text().await?; // its queue is another one, its last page is shared
                }
            }
            Ok(list([Json::List(chosen), ctx.text()?.into()]))
        }
        "narrow" => midway::narrow(&mut ctx).await,
        "crowded" => midway::crowded(&args.model()).await,
        "begun" => midway::begun(&mut ctx, &args).await,
        "received" => received::received(&args).await,
        "raw" => midway::raw(&mut ctx).await,
        "mcp" => {
            let (urls, mut found) = (args.required::<String>("urls")?, Vec::new());
            for url in Json::parse(&urls)?.items().iter().filter_map(Json::as_str) {
                let said = called(url, args.model()).await;
                found.push(said.unwrap_or_else(|error| vec![error.message.into()]));
            }
            Ok(Json::List(found.into_iter().map(Json::List).collect()))
        }
        "sent" => {
            let url: String = args.required("url")?;
            let early = http_get(format!("{}/é b?c=%20|", url)).send();
            http_get(format!("{}/late", url)).send().await?.check()?;
            let response = early.await?.check()?;
            Ok(list([response.url.clone().into(), response.text().await?.into()]))
        }
        "toolbox" => {
            let (names, ran) = (args.required::<Json>("names")?, Rc::new(Cell::new(0)));
            let tool = |name: &Json| {
                let (schema, ran) = (Json::object([("type", "object".into())]), ran.clone());
                Tool::new(name.as_str().unwrap_or_default(), "", schema, move |_| {
                    ran.set(ran.get() + 1);
                    std::future::ready(Ok("done".to_string()))
                })
            };
            let tools = Tools::new(names.items().iter().map(tool).collect());
            let answer = tools.stream(&mut Context::new(args.model())?, "Do it.", 80, 2, &args).await;
            Ok(list([answer.map_or_else(|error| error.to_string(), |turn| turn.text).into(), ran.get().into()]))
        }
        "woken" => {
            let bell = Bell::default();
            let ring = async {
                sleep(Duration::from_millis(1)).await?;
                bell.0.set(true);
                bell.1.take().ok_or("nobody waits")?.wake();
                Ok(())
            };
            let wait = async {
                try_join_all([bell.heard()]).await.map(drop) // two deep
            };
            let both: [Pin<Box<dyn Future<Output = Result<()>> + '_>>; 2] = [Box::pin(wait), Box::pin(ring)];
            timeout(Duration::from_secs(60), try_join_all(both)).await?;
            Ok("woken".into())
        }
        "turns" => {
            let mut futures = Vec::new();
            while let Ok(number) = inferlet::raw::core::sleep(u64::MAX) {
                futures.push(number); // as many as there may be
            }
            inferlet::raw::core::cancel(futures[0])?;
            let is_over = Cell::new(false);
            let spin = async {
                while !is_over.get() {
                    Again(false).await;
                }
                Ok(())
            };
            let end = async {
                sleep(Duration::from_millis(1)).await?;
                is_over.set(true);
                Ok(())
            };
            let both: [Pin<Box<dyn Future<Output = Result<()>> + '_>>; 2] = [Box::pin(spin), Box::pin(end)];
            try_join_all(both).await?;
            Ok("over".into())
        }
        "hasty" => {
            let never = async { args.receive().await.map(drop) };
            let soon = async {
                sleep(Duration::from_millis(1)).await?;
                Err("one has failed".into())
            };
            let both: [Pin<Box<dyn Future<Output = Result<()>> + '_>>; 2] = [Box::pin(never), Box::pin(soon)];
            let failed = try_join_all(both).await.err().map(|error| error.message);
            args.send("over").await?;
            Ok((failed, args.receive().await?.text).to_json())
        }
        "tasks" => meanwhile::tasks(&args).await,
        "time" => meanwhile::time().await,
        "tried again" => meanwhile::tried_again().await,
        "adapted" => named::adapted(&args.model()).await,
        "written" => {
            let by_name: HashMap<String, [u8; 2]> = [("b".to_string(), [1, 2]), ("a".to_string(), [3, 4])].into();
            Ok((-1i16, by_name, Json::from(&[0.5f32, 2.0][..])).to_json())
        }
        "acts" => acts(&args.required::<String>("acts")?, args.model()).await,
        "read" => {
            let texts: Json = args.required("texts")?;
            let read = |text: &Json| match Json::parse(text.as_str().unwrap_or_default()) {
                Ok(value) => list([value.to_string().into(), value.get("k").cloned().unwrap_or(Json::Null)]),
                Err(_) => Json::Null,
            };
            Ok(Json::List(texts.items().iter().map(read).collect()))
        }
        "refused" => refused(&mut ctx).await,
        "silent" => Err("".into()),
        "caused" => Err("caused".into()),
        "talk" => {
            let topic = subscribe("features")?;
            let listeners = broadcast("features", "\"hello\"\n\u{1f41d}").await?;
            let heard = topic.next().await?;
            let child = Launch::of("").argument("what", "echo").limit("max_pages", 50u32).launch()?;
            child.send("one").await?;
            let echoed = child.receive().await?.map_or(String::new(), |message| message.text);
            let result = child.result().await?;
            let failed = Launch::of("").argument("what", "panic").launch()?.end().await?;
            let says = failed.error.unwrap_or_default().contains("it was meant");
            let narrow = Launch::of("").argument("what", "narrow").limit("max_pages", 50u32);
            let narrow = narrow.limit("max_embeds", 1200u32).launch()?.result().await?;
            let heard = [listeners.into(), heard.text.into(), echoed.into(), result, failed.status.into(), says.into()];
            Ok(Json::List(heard.into_iter().chain([narrow]).collect()))
        }
        "echo" => {
            let message = args.receive().await?;
            args.send(format!("{} {}", message.text, message.sender)).await?;
            Ok(Json::object([("half", 0.5.into()), ("list", list([1.into(), Json::Null, true.into()]))]))
        }
        "fail" => Err(ctx.truncate(3)?.fill_tokens(&[u32::MAX])?.flush().await.err().ok_or("it was allowed")?),
        "panic" => {
            let numbers = [1, 2, 3];
            let place = args.or("place", 5usize)?;
            panic!("it was meant: {}", numbers.get(place).map_or(0, |one| *one));
        }
        "exit" => std::process::exit(3),
        "memory" => Ok(Vec::<u8>::with_capacity(args.or("bytes", 1usize << 30)?).capacity().into()),
        "loop" => loop {
            if args.environment("never").is_some() {
                return Ok(Json::Null);
            }
        },
        "stuck" => std::future::pending().await,
        "clock" => Ok(format!("{:?}", std::time::Instant::now()).into()),
        "loud" => {
            let text = format!("x{}", "é".repeat(5 << 20));
            args.log(&text);
            Err(text.into())
        }
        "large" => args.send("x".repeat(9 << 20)).await.map(|()| Json::Null),
        other => Err(Error::new(format!("unknown: {}", other))),
    }
}

/// Has the task polled once more.
struct Again(bool);

impl Future for Again {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Whether it has rung, and who waits for that: no future of the host tells it.
#[derive(Default)]
struct Bell(Cell<bool>, Cell<Option<Waker>>);

impl Bell {
    async fn heard(&self) -> Result<()> {
        Heard(self).await;
        Ok(())
    }
}

struct Heard<'a>(&'a Bell);

impl Future for Heard<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<()> {
        self.0 .1.set(Some(context.waker().clone()));
        if self.0 .0.get() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// What the model is told by the tools of a server, and what it says beside its calls.
async fn called(url: &str, model: String) -> Result<Vec<Json>> {
    let (tools, mut ctx) =
        (Tools::from_mcp_with(url, None, &[("Authorization", "Bearer x")], 30.0).await?, Context::new(&model)?);
    tools.ask(&mut ctx, "add")?;
    let turn = tools.turn(&mut ctx, 2000).await?;
    Ok(turn.calls.into_iter().map(|call| call.text.into()).chain([turn.text.into()]).collect())
}

/// Does what a list of acts says: the name of each, the number of its context, tokens and texts. All that was sampled.
async fn acts(text: &str, model: String) -> Result<Json> {
    let (mut contexts, mut found) = (Vec::<Context>::new(), Vec::new());
    for act in Json::parse(text)?.items() {
        let [name, place, numbers, texts] = <&[Json; 4]>::try_from(act.items()).map_err(|_| "an act has four parts")?;
        let place = place.as_i64().ok_or("no number")? as usize;
        let tokens: Vec<u32> = numbers.items().iter().filter_map(Json::as_i64).map(|one| one as u32).collect();
        let texts: Vec<&str> = texts.items().iter().filter_map(Json::as_str).collect();
        if name.as_str() == Some("new") {
            contexts.push(Context::new(&model)?);
            continue;
        }
        if name.as_str() == Some("restart") {
            let fresh = contexts[place].restarted(tokens[0] as usize)?;
            contexts.push(fresh);
            continue;
        }
        let message = |pair: &[&str]| Json::object([("role", pair[0].into()), ("content", pair[1].into())]);
        if name.as_str() == Some("resume") {
            let mut opened = Context::open(texts[0], &model, "").await?;
            match opened.resume_chat(texts[1..].chunks(2).map(message).collect()) {
                Ok(_) => contexts.push(opened),
                Err(error) => found.push((error.code == Code::NotFound).into()),
            }
            continue;
        }
        if name.as_str() == Some("join") {
            let mut all: Vec<Option<&mut Context>> = contexts.iter_mut().map(Some).collect();
            let parts: Vec<&mut Context> = tokens.iter().filter_map(|token| all[*token as usize].take()).collect();
            match Context::join(parts) {
                Ok(whole) => contexts.push(whole),
                Err(error) => {
                    found.push(error.message.into());
                    contexts.push(Context::new(&model)?);
                }
            }
            continue;
        }
        let ctx = &mut contexts[place];
        match name.as_str().unwrap_or_default() {
            "fill" => drop(ctx.fill_tokens(&tokens)?),
            "apart" => drop(ctx.keep_apart()),
            "texts" => texts.iter().for_each(|text| drop(ctx.fill(*text))),
            "chat" => drop(ctx.chat_with(texts.chunks(2).map(message).collect(), None)?),
            "fork" => {
                let child = ctx.fork()?;
                contexts.push(child);
            }
            "truncate" => {
                let length = (tokens[0] as usize).min(ctx.tokens()?.len());
                found.extend(ctx.truncate(length).err().map(|error| Json::from(error.message)));
            }
            "drop" => {
                if let Err(error) = ctx.drop_tokens(tokens[0] as usize, tokens[1] as usize, tokens[2] > 0) {
                    found.push(error.message.into());
                }
            }
            "keep" => drop(ctx.keep()?),
            "close" => {
                ctx.flush().await?;
                contexts.remove(place);
            }
            "score" => drop(ctx.score(&tokens).await?),
            "export" => {
                ctx.export(texts[0]).await?;
                contexts.push(Context::open(texts[0], &model, "").await?);
            }
            "sample" => found.push(ctx.sample(&Sampler::greedy()).await?.into()),
            "generate" => {
                let generation = ctx.generate(tokens[0] as usize).ignore_stop_tokens().step_by_step();
                found.push(texts.iter().fold(generation, |all, text| all.stop(*text)).text().await?.into());
            }
            "draft" => {
                let (begin, right) = (ctx.tokens()?.len(), tokens.clone());
                let half_right = move |all: &[u32]| {
                    let (done, next) = (all.len() - begin, |token: &u32| *token ^ 1);
                    let wrong = right.iter().skip(done + 2).take(2).map(next);
                    right.iter().skip(done).take(2).copied().chain(wrong).collect()
                };
                let generation = ctx.generate(tokens.len()).ignore_stop_tokens().draft(half_right);
                found.push(texts.iter().fold(generation, |all, text| all.stop(*text)).text().await?.into());
            }
            "try" => {
                let given = tried::tried(ctx, &Json::parse(texts[0])?, &tokens).await;
                found.push(given.unwrap_or_else(|error| error.to_string().into()));
                found.push(Json::List(ctx.tokens()?.iter().map(|token| (*token).into()).collect()));
            }
            "shut" => drop(contexts.remove(place)),
            "left" => {
                contexts.clear();
                let is_left = |usage: &Json| ["pages", "futures"].iter().any(|one| usage.get(one) != Some(&0.into()));
                while is_left(&Json::parse(&inferlet::raw::core::usage())?) {
                    sleep(Duration::from_millis(1)).await?; // what a run has left comes back when it has ended
                }
            }
            other => return Err(Error::new(format!("unknown: {}", other))),
        }
    }
    Ok(Json::List(found))
}

/// Arguments of each type, as words and values give them.
fn bound(args: &Args) -> Result<Json> {
    let flag = args.or("loud", false)?;
    let (whole, byte) = (args.or("seed", 7u64)?, args.or("count", 0i32)?);
    let numbers: Vec<i64> = args.or("numbers", Vec::new())?;
    let (ratio, text) = (args.or("mean-ratio", 0.5)?, args.required::<String>("topic")?);
    args.finish()?;
    Ok(list([flag.into(), whole.into(), byte.into(), numbers.to_json(), ratio.into(), text.into()]))
}

/// What is wrong is refused, each with its code, and nothing panics.
async fn refused(ctx: &mut Context) -> Result<Json> {
    let mut found: Vec<Option<Error>> = Vec::new();
    let wrong = [
        Sampler { temperature: f64::NAN, ..Sampler::default() },
        Sampler { top_p: f64::INFINITY, ..Sampler::default() },
        Sampler { logit_bias: vec![(1, f64::NEG_INFINITY)], ..Sampler::default() },
        Sampler { min_p: -1.0, ..Sampler::default() },
        Sampler { top_k: u32::MAX, ..Sampler::default() },
    ];
    for sampler in wrong {
        found.push(ctx.generate(3).sampler(sampler).text().await.err());
    }
    found.push(ctx.generate(3).stop("").text().await.err());
    let mut generation = ctx.generate(3).choose(2, 1.0, |dist| dist.max_index()).draft(prompt_lookup(3, 8));
    found.extend([generation.next().await.err(), generation.next().await.err()]);
    drop(generation);
    found.push(ctx.beam(0, 3).await.err());
    for count in [0, 2001] {
        found.push(ctx.best_of(count, 1, &Sampler::default(), |_| 0.0).await.err());
    }
    found.extend([ctx.next_dist(0, 0.0).await.err(), ctx.drop_tokens(3, usize::MAX, true).err()]);
    found.extend([ctx.window(0, 4).err(), ctx.restarted(0).err(), ctx.chat_with(vec!["word".into()], None).err()]);
    found.push(Launch::of("").limit("cpu_seconds", f64::NAN).launch().err());
    found.push(http_get("http://a.b/").timeout(f64::NAN).send().await.err());
    let mut long = Context::with(&ctx.model().name, "", ctx.model().max_context)?;
    long.fill("too far");
    found.extend([long.generate(1).text().await.err(), long.beam(2, 1).await.err()]);
    let mut large = Context::new(&ctx.model().name)?;
    large.fill("x".repeat(9 << 20));
    found.push(large.text().err());
    found.push(large.fill("more").text().err()); // it is not missing without a word
    found.push(ctx.beam(usize::MAX, 2).await.err());
    Ok(Json::List(found.into_iter().map(|one| one.map(|error| error.to_string()).to_json()).collect()))
}

fn list<const N: usize>(items: [Json; N]) -> Json {
    Json::List(items.to_vec())
}
