//! The appends that wait in this object. Nothing else of the ledger waits: what has its body is
//! handled and answered at once.
use super::host::Host;
use super::http::Head;
use crate::answer::Answer;
use crate::appends;
use crate::error::Result;

/// One that waits. A caller that goes away ends it, too.
pub struct Append<'a> {
    host: &'a Host,
    run_id: String,
    began_ms: i64,
    is_committed: bool,
}

impl<'a> Append<'a> {
    /// Lets an append in; nothing where the request is none. `503 overloaded`.
    pub fn enter(host: &'a Host, head: &Head) -> Result<Option<Append<'a>>> {
        let Some(run_id) = appends::run_of(&head.method, &head.path) else { return Ok(None) };
        if !host.run(|db| Ok(appends::is_admitted(db, &head.with_body(None))))? {
            return Ok(None);
        }
        host.runner.borrow_mut().appends.enter(&run_id)?;
        let began_ms = host.clock.now_ms();
        Ok(Some(Append { host, run_id, began_ms, is_committed: false }))
    }

    pub fn answered(mut self, answer: &Answer) {
        self.is_committed = answer.status < 300;
    }
}

impl Drop for Append<'_> {
    fn drop(&mut self) {
        let waited_ms = u64::try_from(self.host.clock.now_ms() - self.began_ms).unwrap_or(0);
        let mut runner = self.host.runner.borrow_mut();
        runner.appends.leave(&self.run_id, waited_ms, self.is_committed);
    }
}
