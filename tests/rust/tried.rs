//! What a context gives as options say, which `tried` in `features.py` reads alike.

use inferlet::*;

/// The options of one act.
struct Options<'a>(&'a Json);

impl Options<'_> {
    fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some()
    }

    fn real(&self, name: &str) -> Option<f64> {
        self.0.get(name).and_then(Json::as_f64)
    }

    fn number(&self, name: &str) -> Option<usize> {
        self.real(name).map(|one| one as usize)
    }

    fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Json::as_str).unwrap_or_default()
    }

    fn items(&self, name: &str) -> &[Json] {
        self.0.get(name).map_or(&[], Json::items)
    }
}

pub async fn tried(ctx: &mut Context, options: &Json, tokens: &[u32]) -> Result<Json> {
    let options = Options(options);
    let sampler = Sampler {
        temperature: options.real("temperature").unwrap_or(0.0),
        seed: options.number("seed").map(|seed| seed as u64),
        top_p: options.real("top_p").unwrap_or(1.0),
        repetition_penalty: options.real("penalty").unwrap_or(1.0),
        window: options.number("window").unwrap_or(64),
        ..Sampler::default()
    };
    let (width, most) = (options.number("width").unwrap_or(1), options.number("most"));
    match options.text("what") {
        "score" => {
            let scores = ctx.score(tokens).await?;
            Ok(Json::List(scores.iter().map(|one| rounded(f64::from(*one))).collect()))
        }
        "select" => {
            let texts: Vec<&str> = options.items("options").iter().filter_map(Json::as_str).collect();
            let chosen = ctx.select(&texts, options.has("mean")).await?;
            Ok(texts[chosen].into())
        }
        "sample" => Ok(ctx.sample(&sampler).await?.into()),
        "beam" => Ok(shown(&ctx.beam(width, most.unwrap_or(1)).await?)),
        "best" => {
            let score = |text: &str| text.bytes().map(f64::from).sum();
            Ok(shown(&ctx.best_of(width, most.unwrap_or(1), &sampler, score).await?))
        }
        _ if options.has("whole") => Ok(generation(ctx, &options, sampler, tokens).text().await?.into()),
        _ => {
            let generation = generation(ctx, &options, sampler, tokens);
            taken(generation, options.number("take").unwrap_or(usize::MAX), options.number("cancel")).await
        }
    }
}

fn rounded(number: f64) -> Json {
    ((number * 1000.0).round() as i64).into()
}

fn list(tokens: &[u32]) -> Json {
    Json::List(tokens.iter().map(|token| (*token).into()).collect())
}

fn shown(found: &[Hypothesis]) -> Json {
    let one = |one: &Hypothesis| {
        Json::List(vec![list(&one.tokens), one.text.as_str().into(), rounded(one.score), one.reason.as_str().into()])
    };
    Json::List(found.iter().map(one).collect())
}

fn generation<'a>(ctx: &'a mut Context, options: &Options, sampler: Sampler, tokens: &[u32]) -> Generation<'a> {
    let mut generation = ctx.generate(options.number("most")).sampler(sampler);
    for stop in options.items("stop") {
        generation = generation.stop(stop.as_str().unwrap_or_default());
    }
    for token in options.items("stop_tokens") {
        generation = generation.stop_token(token.as_i64().unwrap_or(0) as u32);
    }
    if options.has("ignore") {
        generation = generation.ignore_stop_tokens();
    }
    if options.has("include") {
        generation = generation.include_stop();
    }
    if options.has("slow") {
        generation = generation.step_by_step();
    }
    if let Some(place) = options.number("choose") {
        generation = generation.choose(5, 1.0, move |dist| dist.tokens[place % dist.tokens.len()]);
    }
    if let Some(matched) = options.number("lookup") {
        generation = generation.draft(prompt_lookup(matched, options.number("length").unwrap_or(8)));
    }
    if options.has("guess") {
        let tokens = tokens.to_vec();
        generation = generation.draft(move |_: &[u32]| tokens.clone());
    }
    match options.text("kind") {
        "regex" => generation.regex(options.text("text")),
        "grammar" => generation.lark(options.text("text")),
        "schema" => generation.schema(options.text("text")),
        _ => generation,
    }
}

/// The text of some pieces, why it has ended, the tokens, and what was refused. `cancel`: before which piece it is asked
/// for one and the answer is not waited for.
async fn taken(mut generation: Generation<'_>, most: usize, cancel: Option<usize>) -> Result<Json> {
    let (mut text, mut refused) = (String::new(), Vec::new());
    for place in 0..most {
        if cancel == Some(place) {
            if let First::This(Ok(Some(piece))) = first(generation.next(), std::future::ready(())).await {
                text += &piece;
            }
        }
        match generation.next().await {
            Ok(Some(piece)) => text += &piece,
            Ok(None) => break,
            Err(error) => refused.push(error.to_string().into()),
        }
        if refused.len() == 2 {
            break; // it says so each time
        }
    }
    let reason = generation.stop_reason().map_or("", |reason| reason.as_str());
    Ok(Json::List(vec![text.into(), reason.into(), list(generation.tokens()), Json::List(refused)]))
}
