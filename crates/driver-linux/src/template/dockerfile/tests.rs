use super::*;

fn read(text: &str) -> Result<Recipe> {
    dockerfile("mine".parse().unwrap(), text, Path::new("/context"))
}

#[track_caller]
fn check_refused(text: &str, says: &str) {
    let error = read(text).unwrap_err().to_string();
    assert_eq!(error, format!("dockerfile: {says}"));
}

fn argvs(recipe: &Recipe) -> Vec<Vec<&str>> {
    let runs = recipe.steps.iter().filter_map(|step| match &step.work {
        Work::Run(script) => Some(script.argv.iter().map(String::as_str).collect()),
        Work::Put { .. } => None,
    });
    runs.collect()
}

#[test]
fn both_forms_of_commands_comments_and_continued_lines_are_read() {
    let recipe = read(
        "# a comment\nFROM standard\n\nRUN apt-get update && \\\n  # inside\n  apt-get install -y gcc\n\
         run [\"/bin/echo\", \"two words\"]\nCMD [\"server\", \"--port\", \"80\"]\n",
    )
    .unwrap();
    assert_eq!(recipe.base, Base::Template("standard".parse().unwrap()));
    assert_eq!(
        argvs(&recipe),
        [
            vec!["/bin/sh", "-c", "apt-get update && apt-get install -y gcc"],
            vec!["/bin/echo", "two words"]
        ]
    );
    assert_eq!(recipe.outcome.start.unwrap(), ["server", "--port", "80"]);
    assert_eq!(read("FROM standard\nCMD a b").unwrap().outcome.start.unwrap()[2], "a b");
}

#[test]
fn environment_directory_and_user_hold_from_their_line_on() {
    let recipe = read(
        "FROM ghcr.io/a/b:1\nENV A=1 B=\"two words\" C='$A'\nENV OLD its value\nENV PATH=$A:${B}:\\$A\n\
         WORKDIR /srv\nWORKDIR app\nUSER 1000:1000\nRUN true\n",
    )
    .unwrap();
    let Work::Run(script) = &recipe.steps.last().unwrap().work else { panic!("a RUN") };
    let env = |name: &str| script.env[name].as_str();
    assert_eq!((env("A"), env("B"), env("C"), env("OLD")), ("1", "two words", "$A", "its value"));
    assert_eq!(env("PATH"), "1:two words:$A");
    assert_eq!(script.cwd.as_deref(), Some("/srv/app"));
    assert_eq!(script.user.as_deref(), Some("1000:1000"));
    assert_eq!(recipe.outcome.user.as_deref(), Some("1000:1000"));
    assert_eq!(recipe.outcome.workdir.as_deref(), Some("/srv/app"));
}

#[track_caller]
fn check_copy(line: &str, into: &str, renamed: Option<&str>) {
    let recipe = read(&format!("FROM standard\nWORKDIR /app\n{line}")).unwrap();
    let Work::Put { into: found, source } = &recipe.steps[1].work else { panic!("a COPY") };
    let Source::Context { rename, .. } = source else { panic!("from the context") };
    assert_eq!((found.as_str(), rename.as_deref()), (into, renamed), "{line}");
}

#[test]
fn copy_goes_where_docker_puts_it() {
    check_copy("COPY a.txt b.txt", "/app", Some("b.txt"));
    check_copy("COPY a.txt .", "/app", None);
    check_copy("COPY . /srv/", "/srv", None);
    check_copy("COPY a b /srv", "/srv", None);
    check_copy("COPY [\"a file\", \"/x/y\"]", "/x", Some("y"));
    check_copy("COPY a /", "/", None);
}

#[test]
fn whatever_else_is_written_is_refused_with_its_line() {
    check_refused("", "line 1: there is no FROM");
    check_refused("RUN true", "line 1: RUN before FROM");
    check_refused("FROM standard AS x", "line 1: FROM takes one image; `AS` is not supported");
    check_refused("FROM --platform=x y", "line 1: FROM --platform=x is not supported");
    check_refused(
        "FROM standard\n\nFROM x",
        "line 3: a second FROM: builds of several stages are not supported",
    );
    check_refused(
        "FROM standard\nENTRYPOINT [\"x\"]",
        "line 2: ENTRYPOINT is not supported; FROM, RUN, COPY, ENV, WORKDIR, USER and CMD are",
    );
    check_refused("FROM standard\nFOO bar", "line 2: unknown instruction: FOO");
    check_refused("FROM standard\nRUN", "line 2: RUN needs something after it");
    check_refused("FROM standard\nRUN --mount=x y", "line 2: options of RUN are not supported");
    check_refused("FROM standard\nRUN cat <<EOF", "line 2: here-documents are not supported");
    check_refused(
        "FROM standard\nRUN a \\\n  b\nADD x y",
        "line 4: ADD is not supported; FROM, RUN, COPY, ENV, WORKDIR, USER and CMD are",
    );
    check_refused("FROM standard\nCOPY x", "line 2: COPY takes what to copy and where to");
    check_refused("FROM standard\nCOPY --from=a b c", "line 2: COPY --from is not supported");
    check_refused("FROM standard\nCOPY *.c /", "line 2: patterns are not supported: *.c");
    check_refused("FROM standard\nENV A", "line 2: ENV takes NAME=VALUE");
    check_refused("FROM standard\nENV A=\"x", "line 2: a quote is not closed");
    check_refused("FROM standard\nENV A=${B:-c}", "line 2: `${B:-c}`: only ${NAME} is supported");
    check_refused(
        "FROM standard\nCOPY ../secret /",
        "line 2: COPY cannot leave its context: ../secret",
    );
}

#[test]
fn a_link_cannot_take_copy_out_of_its_context() {
    let dir = tempfile::tempdir().unwrap();
    let context = dir.path().join("context");
    std::fs::create_dir(&context).unwrap();
    std::fs::write(dir.path().join("secret"), "hush").unwrap();
    std::fs::write(context.join("fine"), "fine").unwrap();
    std::os::unix::fs::symlink("../secret", context.join("out")).unwrap();
    std::os::unix::fs::symlink("fine", context.join("in")).unwrap();
    let pack = |name: &str| {
        let from = vec![name.to_owned()];
        let source = Source::Context { dir: context.clone(), from, rename: None };
        let file = tempfile::tempfile().unwrap();
        let mut reader = file.try_clone().unwrap();
        let packed = source.pack(file).map_err(|error| format!("{error:#}"));
        std::io::Seek::rewind(&mut reader).unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut reader, &mut bytes).unwrap();
        assert!(!bytes.windows(4).any(|four| four == b"hush"), "{name}");
        packed
    };
    assert_eq!(pack("out").unwrap_err(), "copy out: COPY cannot leave its context");
    assert_eq!(pack("nothing").unwrap_err(), "copy nothing: no such file in the build context");
    assert!(pack("in").is_ok());
    // A link among the files is copied as a link, wherever it leads.
    assert_eq!(pack(".").unwrap(), pack(".").unwrap(), "the same files have the same digest");
}
