use crate::team::Team;

#[test]
fn a_new_team_is_read_back_by_its_owner() {
    let team = Team::new();
    let got = team.get(&team.owner, "");
    assert_eq!(got.data(200)["name"], "Acme");
    assert_eq!(got.data(200)["retention"]["events_days"], 7);
    assert_eq!(got.header("etag"), Some("\"1\""));
    assert_eq!(got.json["context"]["team_id"], team.id.to_string());
}
