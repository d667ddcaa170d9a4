//! What a piece of a batch does when there is no batch.

use super::*;

#[test]
fn nothing_is_written_outside_the_batch() {
    let connection = rusqlite::Connection::open_in_memory().unwrap();
    connection.execute_batch("CREATE TABLE pieces (piece INTEGER)").unwrap();
    let mut batch = Batch { db: Db::Sqlite(&connection), told: Vec::new(), spoiled: None };
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

#[test]
fn a_full_database_is_told_from_a_broken_one_and_takes_more_once_there_is_room() {
    let connection = rusqlite::Connection::open_in_memory().unwrap();
    let sql = "CREATE TABLE pieces (piece BLOB); PRAGMA max_page_count = 4";
    connection.execute_batch(sql).unwrap();
    let mut target = Target::Sqlite(connection);
    let told = broadcast::Sender::new(1);
    let mut write = |before: &'static str| {
        if let Target::Sqlite(connection) = &target {
            connection.execute_batch(before).unwrap();
        }
        let (tell, heard) = std::sync::mpsc::channel();
        let job: Job = Box::new(move |batch| {
            let outcome = in_savepoint(batch, |batch| {
                batch.db.run("INSERT INTO pieces VALUES (zeroblob(100000))")
            });
            Box::new(move |fate| tell.send((fate, outcome)).unwrap())
        });
        commit(&mut target, vec![job], &told);
        heard.recv().unwrap()
    };
    let (_, refused) = write("");
    assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
    let (fate, written) = write("PRAGMA max_page_count = 400");
    assert!(fate == Fate::Committed && written.is_ok(), "{fate:?} {written:?}");
}
