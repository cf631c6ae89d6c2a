//! Tasks beside each other, clocks, and what is tried again.

use std::cell::Cell;
use std::time::Duration;

use inferlet::*;

const SOON: Duration = Duration::from_millis(1);

/// What tasks give that are added while others go on; and whether one that is dropped leaves to the next one what it has
/// waited for.
pub async fn tasks(args: &Args) -> Result<Json> {
    let (is_open, is_over) = (Cell::new(false), Cell::new(false));
    let mut tasks: Tasks<Result<String>> = Tasks::new();
    tasks.add(async {
        until(&is_open).await?;
        is_over.set(true);
        Ok("the first one".to_string())
    });
    tasks.add(async { args.receive().await.map(|message| message.text) });
    let beside = tasks.beside(async {
        is_open.set(true);
        until(&is_over).await.map(|()| "beside them")
    });
    let mut found = vec![Json::from(beside.await?)];
    tasks.add(async { Err("a later one".into()) });
    found.push(tasks.len().into());
    for _ in 0..2 {
        found.push(tasks.next().await.map(|given| given.unwrap_or_else(|error| error.message)).to_json());
    }
    drop(tasks);
    args.send("over").await?;
    found.push(args.receive().await?.text.into());
    found.push(Tasks::<()>::new().next().await.is_none().into());
    Ok(Json::List(found))
}

async fn until(is_set: &Cell<bool>) -> Result<()> {
    while !is_set.get() {
        sleep(SOON).await?;
    }
    Ok(())
}

/// Whether time goes on, what it is, and whether random numbers differ. A time without an end is none.
pub async fn time() -> Result<Json> {
    let before = monotonic();
    let name = "é".repeat(2000); // what of it is told is bounded
    span(&name, timeout(Duration::MAX, sleep(SOON))).await?;
    let is_later = monotonic() >= before + SOON;
    Ok((is_later, unix_time().as_secs_f64(), random() != random()).to_json())
}

/// What is given at last, how often it was tried, and what is said of what never works.
pub async fn tried_again() -> Result<Json> {
    let mut found = Vec::<Json>::new();
    let ways = [(3, 3, Code::Busy), (2, 3, Code::TimedOut), (3, 2, Code::NotFound), (0, 1, Code::Busy)];
    for (times, works, code) in ways {
        let count = Cell::new(0);
        let given = retry(times, SOON, || async {
            count.set(count.get() + 1);
            if count.get() < works {
                return Err(Error::with(code, "not yet"));
            }
            Ok("it works".to_string())
        });
        found.push(given.await.unwrap_or_else(|error| error.to_string()).into());
        found.push(count.get().into());
    }
    Ok(Json::List(found))
}
