//! Worktrees: each legal move of an instance, and that every other is refused and changes nothing.
use crate::agent::{Agent, turn};
use crate::team::Team;
use serde_json::{Value as Json, json};
use teamplane::auth::Role;

fn begin(agent: &Agent, worktree: &str, instance: &str, adopt: bool) -> crate::team::Got {
    let body = json!({ "worktree": worktree, "instance_id": instance, "adopt": adopt,
                       "path": format!("/src/{worktree}") });
    agent.post("/worktrees", body)
}

fn act(agent: &Agent, instance: &str, action: &str) -> crate::team::Got {
    agent.post(&format!("/worktrees/{instance}/{action}"), json!({}))
}

/// Brings a new instance into a state.
fn brought_to(agent: &Agent, state: &str) {
    begin(agent, "w", "i", false).data(201);
    let actions: &[&str] = match state {
        "creating" => &[],
        "active" => &["register"],
        "deleting" => &["register", "begin-deletion"],
        _ => &["register", "begin-deletion", "finish-deletion"],
    };
    for action in actions {
        act(agent, "i", action).data(200);
    }
}

#[test]
fn every_move_is_legal_or_refused_with_the_state() {
    const STATES: [&str; 4] = ["creating", "active", "deleting", "deleted"];
    const MOVES: [(&str, [Option<&str>; 4]); 6] = [
        ("register", [Some("active"), None, None, None]),
        ("abandon", [Some(""), None, None, None]),
        ("begin-deletion", [None, Some("deleting"), None, None]),
        ("reactivate", [None, None, Some("active"), None]),
        ("finish-deletion", [None, None, Some("deleted"), Some("deleted")]),
        ("validate", [None, Some("active"), None, None]),
    ];
    for (action, outcomes) in MOVES {
        for (state, outcome) in STATES.iter().zip(outcomes) {
            let team = Team::new();
            let agent = Agent::new(&team);
            brought_to(&agent, state);
            let before = team.lines("SELECT * FROM worktrees");
            team.advance(1);
            let got = act(&agent, "i", action);
            if let Some(outcome) = outcome {
                let now = got.data(200)["state"].as_str().unwrap_or_default().to_owned();
                assert_eq!(now, outcome, "{action} from {state}");
                let states = team.lines("SELECT state FROM worktrees").concat();
                assert_eq!(states, outcome);
            } else {
                assert_eq!(got.refusal().1, "worktree_state", "{action} from {state}");
                assert_eq!(got.status, 409);
                assert_eq!(got.json["error"]["details"]["state"], *state);
                assert_eq!(team.lines("SELECT * FROM worktrees"), before);
            }
        }
        let team = Team::new();
        let got = act(&Agent::new(&team), "none", action);
        assert_eq!(got.refusal().1, "worktree_state");
        assert_eq!(got.json["error"]["details"]["state"], Json::Null);
    }
}

#[test]
fn a_name_has_one_life_at_a_time_and_an_id_one_ever() {
    let team = Team::new();
    let agent = Agent::new(&team);
    brought_to(&agent, "active");
    let refused = |worktree: &str, instance: &str| {
        let got = begin(&agent, worktree, instance, false);
        assert_eq!(got.refusal().1, "worktree_state", "{}", got.json);
        got.json["error"]["details"]["state"].clone()
    };
    assert_eq!(refused("w", "i2"), "active");
    assert_eq!(refused("other", "i"), "active");
    act(&agent, "i", "begin-deletion").data(200);
    assert_eq!(refused("w", "i2"), "deleting");
    act(&agent, "i", "finish-deletion").data(200);
    assert_eq!(refused("w", "i"), "deleted");
    begin(&agent, "w", "i2", false).data(201);
    // Elsewhere both are free.
    let body = json!({ "workspace": "x", "worktree": "w", "instance_id": "i", "path": "/p" });
    agent.post("/worktrees", body).data(201);
    assert_eq!(agent.get("/worktrees/i?workspace=x").data(200)["state"], "creating");
    assert_eq!(agent.get("/worktrees/i").data(200)["state"], "deleted");
    assert_eq!(agent.get("/worktrees/none").status, 404);
    let names = |query: &str| {
        let got = agent.get(&format!("/worktrees{query}"));
        let items = got.items().iter().map(|i| i["instance_id"].as_str().unwrap().to_owned());
        items.collect::<Vec<_>>()
    };
    begin(&agent, "a", "i3", false).data(201);
    assert_eq!(names(""), ["i3", "i", "i2"]);
    assert_eq!(names("?state=deleted"), ["i"]);
    assert_eq!(names("?state=live"), ["i3", "i2"]);
    assert_eq!(names("?workspace=x&state=creating"), ["i"]);
    assert_eq!(agent.get("/worktrees?state=other").refusal().2, "state");
    let page = agent.get("/worktrees?limit=2");
    let next = page.json["next_cursor"].as_str().unwrap();
    assert_eq!(names(&format!("?limit=2&cursor={next}")), ["i2"]);
}

#[test]
fn a_path_is_absolute_and_in_its_shortest_form() {
    let team = Team::new();
    let agent = Agent::new(&team);
    let long = format!("/{}", "p".repeat(4_096));
    for path in ["", "src", "./src", "/src/", "/src//a", "/src/./a", "/src/../a", "/a\0b", &long] {
        let body = json!({ "worktree": "w", "instance_id": "i", "path": path });
        assert_eq!(agent.post("/worktrees", body).refusal().2, "path", "{path:?}");
    }
    for (n, path) in ["/", "/src", "C:\\src\\a", "C:/src"].iter().enumerate() {
        let body =
            json!({ "worktree": format!("w{n}"), "instance_id": format!("i{n}"), "path": path });
        agent.post("/worktrees", body).data(201);
    }
    for (field, value) in
        [("worktree", "a/b"), ("worktree", ""), ("instance_id", " "), ("workspace", "")]
    {
        let mut body = json!({ "worktree": "w", "instance_id": "i", "path": "/p" });
        body[field] = json!(value);
        assert_eq!(agent.post("/worktrees", body).refusal().2, field);
    }
}

#[test]
fn what_a_call_says_of_an_instance_must_be_true() {
    let team = Team::new();
    let agent = Agent::new(&team);
    brought_to(&agent, "creating");
    let register = |body: Json| agent.post("/worktrees/i/register", body);
    for body in [json!({ "path": "/other" }), json!({ "worktree": "v", "path": "/src/w" })] {
        let got = register(body);
        assert_eq!(got.json["error"]["details"]["state"], "creating");
    }
    let good = json!({ "worktree": "w", "path": "/src/w", "workspace": "default" });
    assert_eq!(register(good.clone()).data(200)["state"], "active");
    assert_eq!(agent.post("/worktrees/i/validate", good.clone()).status, 200);
    let got = agent.post("/worktrees/i/validate", json!({ "path": "/other" }));
    assert_eq!(got.refusal().1, "worktree_state");
    let got = agent.post("/worktrees/i/validate?workspace=x", good);
    assert_eq!(got.refusal().2, "workspace");
    let got = agent.post("/worktrees/i/validate?workspace=x", json!({}));
    assert_eq!(got.json["error"]["details"]["state"], Json::Null);
}

#[test]
fn an_adoption_needs_its_route() {
    let team = Team::new();
    let agent = Agent::new(&team);
    let got = begin(&agent, "w", "i", true);
    assert_eq!(got.refusal().1, "worktree_state");
    assert_eq!(got.json["error"]["details"]["state"], Json::Null);
    agent.put("/worktree-routes/w", json!({ "dir": "/other" })).data(200);
    assert_eq!(begin(&agent, "w", "i", true).status, 409);
    agent.put("/worktree-routes/w", json!({ "dir": "/src/w" })).data(200);
    let bob = Agent { token: team.person("bob", Role::Member).token, ..agent.copy() };
    assert_eq!(begin(&bob, "w", "i", true).status, 409, "another's route");
    assert_eq!(begin(&agent, "w", "i", true).data(201)["adopted"], true);
    agent.put("/worktree-routes/w", json!({ "dir": "/moved" })).data(200);
    let got = act(&agent, "i", "register");
    assert_eq!(got.json["error"]["details"]["state"], "creating");
    agent.put("/worktree-routes/w", json!({ "dir": "/src/w" })).data(200);
    act(&agent, "i", "register").data(200);
    assert_eq!(
        team.lines("SELECT instance_id, dir FROM worktree_routes ORDER BY instance_id"),
        [" /src/w", "i /src/w"],
        "the route made by hand stays"
    );
}

#[test]
fn routes_are_made_followed_and_removed() {
    let team = Team::new();
    let agent = Agent::new(&team);
    assert_eq!(agent.get("/worktree-routes/w").status, 404);
    assert_eq!(agent.put("/worktree-routes/w", json!({ "dir": "src" })).refusal().2, "dir");
    let route = agent.put("/worktree-routes/w", json!({ "dir": "/a" })).data(200).clone();
    assert_eq!((&route["dir"], &route["instance_id"]), (&json!("/a"), &Json::Null));
    assert_eq!(agent.put("/worktree-routes/w", json!({ "dir": "/b" })).data(200)["dir"], "/b");
    assert_eq!(team.count("SELECT count(*) FROM worktree_routes"), 1);
    let require = |query: &str| agent.get(&format!("/worktree-routes/w?require=true{query}"));
    assert_eq!(require("").status, 200);
    assert_eq!(require("&dir=/b").status, 200);
    assert_eq!(require("&dir=/a").refusal().1, "worktree_state");
    assert_eq!(agent.get("/worktree-routes/w?dir=/a").refusal().2, "dir");
    brought_to(&agent, "active");
    assert_eq!(agent.get("/worktree-routes/w").data(200)["dir"], "/b", "made by hand");
    assert_eq!(agent.delete("/worktree-routes/w").data(200)["deleted"], 1);
    assert_eq!(agent.delete("/worktree-routes/w").data(200)["deleted"], 0);
    assert_eq!(agent.get("/worktree-routes/w").data(200)["instance_id"], "i");
    assert_eq!(require("").refusal().1, "worktree_state");
    agent.put("/worktree-routes/w", json!({ "dir": "/b" })).data(200);
    let bob = Agent { token: team.person("bob", Role::Member).token, ..agent.copy() };
    assert_eq!(bob.delete("/worktree-routes/w?all=true").data(200)["deleted"], 0);
    assert_eq!(agent.delete("/worktree-routes/w?all=true").data(200)["deleted"], 2);
    assert_eq!(agent.delete("/worktree-routes/w?require=true").refusal().2, "require");
}

#[test]
fn what_is_kept_under_an_instance_needs_it_active() {
    let team = Team::new();
    let agent = Agent::new(&team);
    let tree = agent.in_worktree("w", "i");
    tree.ensure("c").data(200);
    tree.commits("c", "op1", (0, 0, 0), "one");
    tree.put("/snapshots/s", json!({ "messages": [] })).data(200);
    let calls = |agent: &Agent| {
        vec![
            agent.ensure("c"),
            agent.get("/contexts/c"),
            agent.get("/contexts/c/source"),
            agent.get("/contexts/c/export"),
            agent.delete("/contexts/c"),
            agent.commit("c", turn("op1", (0, 0, 0), "one")),
            agent.commit("c", turn("op2", (1, 1, 2), "two")),
            agent.patch("/contexts/c", json!({ "title": "T" })),
        ]
    };
    let state = |got: &crate::team::Got| {
        assert_eq!(got.refusal().1, "worktree_state", "{}", got.json);
        got.json["error"]["details"]["state"].clone()
    };
    let before = team.lines("SELECT * FROM contexts");
    // Not from outside, not from another worktree, not under another name.
    for got in calls(&agent) {
        assert_eq!(state(&got), "active");
    }
    for got in calls(&agent.in_worktree("other", "i2")) {
        assert_eq!(state(&got), "active");
    }
    for got in calls(&agent.with_scope("worktree=x&instance=i")) {
        state(&got);
    }
    assert_eq!(tree.with_scope("worktree=w").get("/contexts/c").refusal().2, "instance");
    assert_eq!(tree.with_scope("instance=i").get("/contexts/c").refusal().2, "worktree");
    let got = agent.post("/contexts/c/reclaim", json!({}));
    assert_eq!(got.refusal(), (400, "invalid_request", "instance"));
    let got = tree.with_capability(1).post("/contexts/c/reclaim", json!({}));
    assert_eq!(got.status, 200);
    // Not once its deletion has begun: whatever was on its way leaves nothing.
    act(&agent, "i", "begin-deletion").data(200);
    for got in calls(&tree) {
        assert_eq!(state(&got), "deleting");
    }
    for got in [
        tree.put("/snapshots/s", json!({ "messages": ["x"] })),
        tree.get("/snapshots/s"),
        tree.delete("/snapshots/s"),
        tree.post("/snapshots/prune", json!({ "names": ["s"] })),
        tree.put("/snapshots/s/admission", json!({ "names": ["x"] })),
        tree.get("/snapshots/s/admission"),
        tree.get("/contexts"),
    ] {
        assert_eq!(state(&got), "deleting");
    }
    assert_eq!(team.lines("SELECT * FROM contexts"), before);
    // Taken back, everything is as before.
    act(&agent, "i", "reactivate").data(200);
    assert_eq!(tree.commit("c", turn("op2", (1, 1, 2), "two")).status, 200);
    assert_eq!(tree.get("/snapshots/s").status, 200);
}

#[test]
fn a_deletion_removes_what_the_caller_keeps_there() {
    let team = Team::new();
    let agent = Agent::new(&team);
    let tree = agent.in_worktree("w", "i");
    let bob = team.person("bob", Role::Member);
    let bob = Agent { token: bob.token, ..tree.copy() };
    for n in 0..3 {
        tree.ensure(&format!("c{n}")).data(200);
    }
    tree.commits("c0", "op1", (0, 0, 0), "x");
    bob.ensure("bobs").data(200);
    for n in 0..150 {
        tree.put(&format!("/snapshots/s{n}"), json!({ "messages": [n] })).data(200);
    }
    bob.put("/snapshots/s", json!({ "messages": [1] })).data(200);
    tree.put("/snapshots/lone/admission", json!({ "names": ["x"] })).data(200);
    agent.put("/snapshots/outside", json!({ "messages": [1] })).data(200);
    agent.put("/worktree-routes/w", json!({ "dir": "/src/w" })).data(200);
    act(&agent, "i", "begin-deletion").data(200);
    let got = act(&agent, "i", "finish-deletion").data(200).clone();
    assert_eq!((&got["deleted"], &got["state"]), (&json!(153), &json!("deleted")));
    assert_eq!(act(&agent, "i", "finish-deletion").data(200)["deleted"], 0);
    assert_eq!(team.lines("SELECT name FROM context_snapshots ORDER BY name"), ["outside", "s"]);
    assert_eq!(team.count("SELECT count(*) FROM snapshot_admissions"), 0);
    assert_eq!(team.lines("SELECT id FROM contexts WHERE deleted_at IS NULL"), ["bobs"]);
    assert_eq!(team.lines("SELECT instance_id FROM worktree_routes"), [""]);
    assert_eq!(agent.ensure("c0").refusal().1, "worktree_state");
    // The same name again is another place.
    let next = agent.in_worktree("w", "i2");
    next.put("/snapshots/s0", json!({ "messages": ["new"] })).data(200);
    let bob_ends = Agent { scope: String::new(), ..bob };
    assert_eq!(act(&bob_ends, "i", "finish-deletion").data(200)["deleted"], 2);
    assert_eq!(next.get("/snapshots/s0").data(200)["messages"], json!(["new"]));
}
