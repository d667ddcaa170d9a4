// The published JavaScript client against whatever serves envd's protocol on localhost:49983.
// Takes no arguments. Prints one line a check; exits with 1 when one fails.

import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'

process.env.E2B_DEBUG = 'true'
process.env.E2B_API_KEY ??= `e2b_${'0'.repeat(40)}`

const { CommandExitError, NotFoundError, Sandbox, TimeoutError } = await import('e2b')

const sandbox = await Sandbox.create()

async function scratch() {
  const path = `smoke-${randomUUID()}`
  await sandbox.files.makeDir(path)
  return path
}

const checks = {
  async 'a command gives its output'() {
    const result = await sandbox.commands.run('echo out; echo err >&2')
    assert.equal(result.stdout, 'out\n')
    assert.equal(result.stderr, 'err\n')
    assert.equal(result.exitCode, 0)
  },

  async 'a failing command rejects'() {
    await assert.rejects(sandbox.commands.run('exit 7'), (error) => {
      assert.ok(error instanceof CommandExitError)
      assert.equal(error.exitCode, 7)
      return true
    })
  },

  async 'environment and directory are used'() {
    const cwd = await scratch()
    const result = await sandbox.commands.run('echo $SMOKE; basename $PWD', { cwd, envs: { SMOKE: 'yes' } })
    assert.equal(result.stdout, `yes\n${cwd}\n`)
  },

  async 'stdin reaches a background command'() {
    let output = ''
    const command = await sandbox.commands.run('cat', {
      background: true,
      stdin: true,
      onStdout: (data) => { output += data },
    })
    await sandbox.commands.sendStdin(command.pid, 'hello\n')
    for (let i = 0; i < 50 && output === ''; i++) await sleep(50)
    assert.equal(output, 'hello\n')
    assert.equal(await command.kill(), true)
  },

  async 'closing stdin ends cat'() {
    const command = await sandbox.commands.run('cat', { background: true, stdin: true })
    await sandbox.commands.sendStdin(command.pid, 'last words')
    await sandbox.commands.closeStdin(command.pid)
    assert.equal((await command.wait()).stdout, 'last words')
  },

  async 'a background command can be connected to'() {
    const command = await sandbox.commands.run('sleep 0.5; echo late; sleep 0.2', { background: true })
    await command.disconnect()
    const listed = await sandbox.commands.list()
    assert.ok(listed.some((process) => process.pid === command.pid))
    const connected = await sandbox.commands.connect(command.pid)
    assert.match((await connected.wait()).stdout, /late/)
  },

  async 'a killed command is gone'() {
    const command = await sandbox.commands.run('sleep 60', { background: true })
    assert.equal(await sandbox.commands.kill(command.pid), true)
    assert.equal(await sandbox.commands.kill(command.pid), false)
    const look = `kill -0 ${command.pid} 2>/dev/null && echo alive || echo gone`
    assert.equal((await sandbox.commands.run(look)).stdout, 'gone\n')
    await assert.rejects(command.wait())
  },

  async 'a command that takes too long is ended'() {
    await assert.rejects(sandbox.commands.run('sleep 30', { timeoutMs: 1000 }), TimeoutError)
  },

  async 'a terminal works'() {
    let output = ''
    const decoder = new TextDecoder()
    const terminal = await sandbox.pty.create({
      cols: 80,
      rows: 24,
      onData: (data) => { output += decoder.decode(data, { stream: true }) },
    })
    await sandbox.pty.resize(terminal.pid, { cols: 100, rows: 30 })
    await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode("stty size; echo do''ne; exit\n"))
    await terminal.wait()
    assert.match(output, /30 100/)
    assert.match(output, /done/)
  },

  async 'files are written and read'() {
    const path = await scratch()
    const info = await sandbox.files.write(`${path}/deep/er/file.txt`, 'contents ü')
    assert.match(info.path, /\/deep\/er\/file\.txt$/)
    assert.equal(await sandbox.files.read(`${path}/deep/er/file.txt`), 'contents ü')
    const data = randomBytes(1 << 20)
    await sandbox.files.write(`${path}/binary`, new Blob([data]))
    const read = await sandbox.files.read(`${path}/binary`, { format: 'bytes' })
    assert.deepEqual(Buffer.from(read), data)
    await sandbox.files.write(`${path}/empty`, '')
    assert.equal(await sandbox.files.read(`${path}/empty`), '')
  },

  async 'several files are written at once'() {
    const path = await scratch()
    const names = ['one', 'two', 'three']
    const written = await sandbox.files.write(names.map((name) => ({ path: `${path}/${name}`, data: name })))
    assert.equal(written.length, 3)
    assert.equal(await sandbox.files.read(`${path}/two`), 'two')
  },

  async 'directories are listed, moved and removed'() {
    const path = await scratch()
    await sandbox.files.write(`${path}/b/c.txt`, 'c')
    await sandbox.files.write(`${path}/a.txt`, 'a')
    const names = async (options) => (await sandbox.files.list(path, options)).map((entry) => entry.name)
    assert.deepEqual(await names(), ['a.txt', 'b'])
    assert.deepEqual(await names({ depth: 2 }), ['a.txt', 'b', 'c.txt'])
    assert.equal(await sandbox.files.makeDir(path), false)
    assert.equal((await sandbox.files.rename(`${path}/a.txt`, `${path}/moved.txt`)).name, 'moved.txt')
    assert.equal(await sandbox.files.exists(`${path}/a.txt`), false)
    const info = await sandbox.files.getInfo(`${path}/moved.txt`)
    assert.equal(info.size, 1)
    assert.equal(info.permissions, '-rw-r--r--')
    await sandbox.files.remove(path)
    assert.equal(await sandbox.files.exists(path), false)
  },

  async 'what is missing is not found'() {
    await assert.rejects(sandbox.files.read('no/such/thing'), NotFoundError)
    await assert.rejects(sandbox.files.list('no/such/thing'), NotFoundError)
  },

  async 'a watched directory tells its events'() {
    const path = await scratch()
    const events = []
    const watcher = await sandbox.files.watchDir(path, (event) => events.push([event.name, event.type]))
    await sandbox.files.write(`${path}/watched.txt`, 'x')
    await sleep(300)
    await watcher.stop()
    assert.deepEqual(events, [
      ['watched.txt', 'create'],
      ['watched.txt', 'chmod'],
      ['watched.txt', 'write'],
    ])
  },
}

let failed = 0
for (const [name, check] of Object.entries(checks)) {
  try {
    await check()
    console.log(`ok    ${name}`)
  } catch (error) {
    failed++
    console.log(`FAIL  ${name}`)
    console.error(error)
  }
}
const all = Object.keys(checks).length
console.log(`${all - failed} of ${all}`)
process.exit(failed ? 1 : 0)
