//! exec, shell, forward.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use super::Server;

#[test]
fn a_commands_output_and_exit_code_are_ours() {
    let server = Server::start();
    assert_eq!(server.ok(&["sandbox", "exec", "box", "--", "echo a b | wc -w"]), "2\n");
    assert_eq!(
        server.ok(&["sandbox", "exec", "box", "--", "printf", "%s|", "a b", "$HOME"]),
        "a b|$HOME|"
    );
    let output = server.fed(
        &["sandbox", "exec", "box", "--no-stdin", "--", "echo out; echo err >&2; exit 9"],
        b"",
    );
    assert_eq!(output.status.code(), Some(9));
    assert_eq!((&*output.stdout, &*output.stderr), (&b"out\n"[..], &b"err\n"[..]));
    let env =
        server.ok(&["sandbox", "exec", "box", "-e", "A=b c", "-w", "/tmp", "--", "echo $A $PWD"]);
    assert_eq!(env, "b c /tmp\n");
    let late = server.instance().exit_code(&[
        "sandbox",
        "exec",
        "box",
        "--timeout",
        "1",
        "--",
        "sleep 60",
    ]);
    assert_eq!(late.unwrap(), 137);
    server.end();
}

#[test]
fn input_of_any_bytes_and_length_reaches_the_command() {
    let server = Server::start();
    let input: Vec<u8> =
        (0..3_000_000_u32).map(|i| i.to_le_bytes()[usize::from(i % 3 == 0)]).collect();
    let output = server.fed(&["sandbox", "exec", "box", "--", "cat"], &input);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout == input);
    // A command that wants only some of it ends when it wants.
    let output = server.fed(&["sandbox", "exec", "box", "--", "head -c 3; exit 4"], &input);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(4), 3));
    server.end();
}

#[test]
fn an_interrupt_kills_the_command_inside() {
    let server = Server::start();
    let mut child = server
        .instance()
        .command(&["sandbox", "exec", "box", "--", "echo begun; sleep 1000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "begun\n");
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    // `[s]leep` does not find the shell that looks for it. A kill takes the kernel a moment.
    let gone = "while cat /proc/[0-9]*/cmdline | grep -aq '[s]leep'; do :; done";
    server.ok(&["sandbox", "exec", "box", "--timeout", "20", "--", gone]);
    server.end();
}

#[test]
fn a_shell_has_a_terminal_and_an_exit_code() {
    let server = Server::start();
    let output = server
        .fed(&["sandbox", "shell", "box"], b"test -t 0 && echo is-a-$((1+1))-terminal\nexit 5\n");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(5), "{text}");
    assert!(text.contains("is-a-2-terminal"), "{text}");
    server.end();
}

#[test]
fn a_port_inside_is_reached_from_here() {
    let server = Server::start();
    let program = "python3 -c 'import socket\n\
                   s = socket.create_server((\"127.0.0.1\", 7000))\n\
                   print(\"up\", flush=True)\n\
                   c, _ = s.accept()\n\
                   c.sendall(c.recv(100).upper())\n\
                   c.close()'";
    let mut listening = server
        .instance()
        .command(&["sandbox", "exec", "box", "--", program])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(listening.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    let mut forwarding = server
        .instance()
        .command(&["sandbox", "forward", "box", "7000", "--local", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(forwarding.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.split(' ').nth(1).unwrap().to_owned();
    let answer = talk(&address);
    let pid = Pid::from_raw(i32::try_from(forwarding.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(forwarding.wait().unwrap().code(), Some(0));
    assert_eq!(answer, "HELLO");
    assert_eq!(listening.wait().unwrap().code(), Some(0));
    server.end();
}

fn talk(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"hello").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
