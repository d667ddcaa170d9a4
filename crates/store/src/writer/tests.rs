//! What a piece of a batch does when there is no batch.

use super::*;

#[test]
fn nothing_is_written_outside_the_batch() {
    let connection = rusqlite::Connection::open_in_memory().unwrap();
    connection.execute_batch("CREATE TABLE pieces (piece INTEGER)").unwrap();
    let mut batch = Batch { db: Db::Sqlite(&connection), told: Vec::new() };
    let write = |batch: &mut Batch<'_>| batch.db.run("INSERT INTO pieces VALUES (1)");
    let count = || {
        let sql = "SELECT count(*) FROM pieces";
        connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    // As after a batch that could not begin.
    assert!(matches!(in_savepoint(&mut batch, write), Err(Error::Unavailable { .. })));
    assert_eq!(count(), 0);
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    in_savepoint(&mut batch, write).unwrap();
    connection.execute_batch("COMMIT").unwrap();
    assert_eq!(count(), 1);
}
