const [plain, tls] = process.argv.slice(2);
for (const base of [plain, tls]) {
  console.log(await (await fetch(base + '/hello')).text());
}
for (const base of [plain, tls]) {
  const socket = new WebSocket(base.replace('http', 'ws') + '/ws');
  console.log(await new Promise((resolve, reject) => {
    socket.onopen = () => socket.send('node');
    socket.onmessage = (event) => resolve('echo ' + event.data);
    socket.onerror = reject;
  }));
  socket.close();
}
console.log(await fetch('http://denied.test/').then(() => 'reached', () => 'denied'));
process.exit(0);
