//! What a program does in the middle of a generation, and between two steps of a context.

use inferlet::raw::{allocate, forward, output_text};
use inferlet::*;

/// A generation that has begun goes to the client: its first piece, the rest, and the text of the context; first without
/// a stop string, then with one. At last all of the text, as it is without stopping.
pub async fn begun(ctx: &mut Context, args: &Args) -> Result<Json> {
    let all = ctx.fork()?.generate(60).ignore_stop_tokens().text().await?;
    let mut found = Vec::new();
    for stop in [None, all.get(all.len() - 8..)] {
        let mut fork = ctx.fork()?;
        let mut generation = fork.generate(60).ignore_stop_tokens();
        if let Some(stop) = stop {
            generation = generation.stop(stop);
        }
        let piece = generation.next().await?.unwrap_or_default();
        let given_up = first(args.stream(&mut generation), std::future::ready(())).await;
        let rest = match given_up {
            First::This(rest) => rest?,
            First::Other(()) => args.stream(&mut generation).await?,
        };
        args.send("|").await?;
        drop(generation);
        found.extend([piece.into(), rest.into(), fork.text()?.into()]);
    }
    found.push(all.into());
    Ok(Json::List(found))
}

/// Whether the distributions of a context are those of a new one, after steps of the program's own on its queue.
pub async fn raw(ctx: &mut Context) -> Result<Json> {
    let mut found = Vec::new();
    for _ in 0..4 {
        let dist = ctx.next_dist(5, 1.0).await?;
        step(ctx.raw_parts().0).await?;
        ctx.fill_tokens(&dist.tokens[..1])?;
        let mut fresh = Context::new(&ctx.model().name)?;
        fresh.fill_tokens(ctx.tokens()?)?;
        let tokens = ctx.next_dist(5, 1.0).await?.tokens;
        found.push((tokens == fresh.next_dist(5, 1.0).await?.tokens).into());
    }
    Ok(Json::List(found))
}

/// A step in pages of its own.
async fn step(queue: u32) -> Result<()> {
    let page = allocate::alloc(queue, allocate::Memory::Kvpage, 1)?;
    let embed = allocate::alloc(queue, allocate::Memory::Emb, 2)?;
    let (pages, output) = ([page, 1], [embed + 1, 1]);
    let number = forward::forward(queue, &pages, &[embed, 1], &pages, &output, &[65], &[0], &[], "", 0, 5, 1.0, false)?;
    HostFuture::new(number, output_text::await_dists).await.map(drop)
}

/// Contexts at once where embeds are few: what half of them score, and the others generate, some by drafts; and what
/// comes behind a few tokens more, one context after the other. Then how many exports are opened at once, and how long
/// the text of very many tokens is; pages that were dropped come back while the program waits.
pub async fn crowded(model: &str) -> Result<Json> {
    let prompt = |number: u32| (0..90).map(|place| 97 + (number + place) % 26).collect::<Vec<u32>>();
    let mut all = Vec::new();
    for number in 0..40 {
        let mut one = Context::new(model)?;
        one.keep_apart().fill_tokens(&prompt(number))?;
        all.push((number, one));
    }
    let done = all.iter_mut().map(|(number, one)| async move {
        if *number % 2 == 1 {
            return Ok(one.score(&[97 + *number % 26; 30]).await?.len().to_string());
        }
        let mut generation = one.generate(3).ignore_stop_tokens();
        if *number % 4 == 0 {
            generation = generation.draft(|_: &[u32]| vec![97; 20]);
        }
        generation.text().await
    });
    let mut found = vec![try_join_all(done).await?.to_json()];
    for (_, one) in &mut all {
        found.push(one.fill_tokens(&prompt(0)[..15])?.next_dist(2, 1.0).await?.max_index().into());
    }
    let (_, mut one) = all.swap_remove(0);
    all.clear();
    Context::new(model)?.fill("short").export("crowded").await?;
    found.push(try_join_all((0..100).map(|_| Context::open("crowded", model, ""))).await?.len().into());
    let pages = || Json::parse(&raw::core::usage()).map(|usage| usage.get("pages").and_then(Json::as_i64));
    let before = pages()?;
    one.drop_tokens(4, 84, false)?;
    while pages()? >= before {
        sleep(std::time::Duration::from_millis(1)).await?;
    }
    let mut long = Context::new(model)?;
    found.push(long.fill_tokens(&vec![97; 140_000])?.text()?.len().into());
    Ok(Json::List(found))
}

/// A prompt longer than the embeds that are left, whose chunks wait for each other. Then what is refused where there are
/// few pages and embeds, and that nothing stays of it: what the inferlet holds behind a prompt for which there are no pages,
/// and how many pages more it has behind a generation for which there is no embed.
pub async fn narrow(ctx: &mut Context) -> Result<Json> {
    let holds = |what: &str| Json::parse(&raw::core::usage()).map(|usage| usage.get(what).and_then(Json::as_i64));
    let taken = [allocate::alloc(ctx.raw_parts().0, allocate::Memory::Emb, 1100)?, 1100];
    let mut parted = Context::new(&ctx.model().name)?;
    parted.fill("the cat sat on the mat and ".repeat(25));
    let mut found = vec![parted.flush().await.err().map(|error| error.message).to_json()];
    allocate::dealloc(ctx.raw_parts().0, allocate::Memory::Emb, &taken)?;
    drop(parted);
    let mut long = Context::new(&ctx.model().name)?;
    long.fill("the cat sat on the mat and ".repeat(120));
    found.push(long.flush().await.err().map(|error| error.code.name()).to_json());
    while holds("embeds")? > Some(1) {
        sleep(std::time::Duration::from_millis(1)).await?; // the output of the prompt stays
    }
    drop(long);
    ctx.flush().await?;
    let mut forks = Vec::new();
    loop {
        while allocate::alloc(ctx.raw_parts().0, allocate::Memory::Emb, 1).is_ok() {}
        let (mut fork, before) = (ctx.fork()?, holds("pages")?);
        if let Err(error) = fork.generate(400).text().await {
            found.extend([error.code.name().into(), (holds("pages")? == before).into()]);
            return Ok(Json::List(found));
        }
        forks.push(fork); // it had what other queues keep
    }
}
