// A target in JavaScript, from proto/delivery.proto alone: no packages, just Node. It appends what it is sent to a file.
//   node examples/target.mjs 127.0.0.1:7400 shard.jsonl
// Each line is one durable step: a fence that was accepted, or entries of a partition that were applied.
import fs from 'node:fs';
import http2 from 'node:http2';

const [address, file] = process.argv.slice(2);
let fence = [0n, 0n], source = null; // the memory: the fence, whose it is, and the last id of each partition
const last = new Map();
const text = fs.existsSync(file) ? fs.readFileSync(file, 'utf8') : '';
const whole = text.slice(0, text.lastIndexOf('\n') + 1); // a line that was not written to its end never happened
for (const line of whole.split('\n').filter(Boolean).map(each => JSON.parse(each)))
  if (line.fence) [fence, source] = [line.fence.map(BigInt), line.source];
  else if (line.entries.length) last.set(line.partition, BigInt(line.entries.at(-1).id));
const out = fs.openSync(file, 'a');
fs.ftruncateSync(out, Buffer.byteLength(whole));
// Some readers take U+0085, U+2028 and U+2029 for the end of a line, and JSON.stringify leaves them as they are.
const escaped = text => text.replace(/[\u0085\u2028\u2029]/g, end => '\\u' + end.charCodeAt(0).toString(16).padStart(4, '0'));
const keep = step => { fs.writeSync(out, escaped(JSON.stringify(step)) + '\n'); fs.fsyncSync(out); };

// Protocol Buffers: varints and what has a length are all that the contract uses.
function varint(number) {
  const bytes = [];
  for (let rest = BigInt.asUintN(64, BigInt(number)); ; rest >>= 7n)
    if (rest > 127n) bytes.push(Number(rest & 127n) | 128); else return Buffer.from([...bytes, Number(rest)]);
}
const field = (number, value) => Buffer.concat(typeof value === 'bigint' || typeof value === 'number'
  ? [varint(number * 8), varint(value)] : [varint(number * 8 + 2), varint(Buffer.byteLength(value)), Buffer.from(value)]);
const message = (...values) => Buffer.concat(values.map((value, place) => field(place + 1, value)));
function parse(data) { // returns a function from the number of a field to its values
  const found = new Map();
  let at = 0;
  const read = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      value |= BigInt(data[at] & 127) << shift;
      if (data[at++] < 128) return BigInt.asIntN(64, value);
    }
  };
  while (at < data.length) {
    const key = Number(read()), value = read();
    const end = at + Number(value);
    found.set(key >> 3, [...found.get(key >> 3) ?? [], key & 7 ? data.subarray(at, at = end) : value]);
  }
  return number => found.get(number) ?? [];
}

http2.createServer().on('stream', (stream, headers) => {
  stream.on('error', () => {}).on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': served ? '0' : '12' }));
  const served = headers[':path'] === '/polonaise.delivery.v1.DeliveryTarget/Deliver';
  stream.respond({ ':status': 200, 'content-type': 'application/grpc' }, { waitForTrailers: true });
  const answer = (kind, body) => { // Accepted is 1, Fenced 2, Acknowledged 3, Refused 4, Ended 5
    const answers = field(1, field(kind, body)), prefix = Buffer.alloc(5);
    prefix.writeUInt32BE(answers.length, 1);
    stream.write(Buffer.concat([prefix, answers]));
    if (kind === 2 || kind === 5) stream.end();
  };
  let mine = null, unread = Buffer.alloc(0);
  const refused = new Set();
  function hello(told) {
    const [version, key, player, target] = [1, 2, 3, 4].map(number => told(number)[0] ?? '');
    const [epoch, term] = [told(5)[0], told(6)[0]], from = [key.toString('hex'), `${player}`, `${target}`];
    if (version !== 1n) return answer(5, message(`this target follows version 1 of the contract, not ${version}`));
    if (source && `${from}` !== `${source}`) return answer(5, message(`this file is of ${source}`));
    if (epoch < fence[0] || (epoch === fence[0] && term <= fence[1])) return answer(2, message(...fence));
    [fence, source] = [mine = [epoch, term], from];
    keep({ fence: fence.map(String), source });
    answer(1, Buffer.concat([...last].map(applied => field(1, message(...applied)))));
  }
  function batch(told) {
    const partition = Number(told(1)[0] ?? 0), previous = told(2)[0] ?? 0n, applied = last.get(partition) ?? -1n;
    if (fence !== mine) return answer(2, message(...fence));
    if (previous !== applied) {
      const what = `partition ${partition}: ${applied} is applied, and what follows ${previous} was sent`;
      return refused.has(partition) || answer(5, message(what));
    }
    const entries = [];
    let why = '';
    for (const [id, payload] of told(3).map(parse).map(entry => [entry(1)[0] ?? 0n, entry(2)[0]]))
      try { entries.push({ id: `${id}`, text: payload && new TextDecoder('utf-8', { fatal: true }).decode(payload) }); }
      catch { why = `entry ${id} is no text`; break; }
    if (entries.length) keep({ partition, entries });
    if (entries.length) last.set(partition, BigInt(entries.at(-1).id));
    refused[why ? 'add' : 'delete'](partition);
    answer(why ? 4 : 3, message(partition, last.get(partition) ?? -1n, ...(why ? [why] : [])));
  }
  stream.on('data', data => {
    unread = Buffer.concat([unread, data]);
    while (unread.length >= 5 && unread.length >= 5 + unread.readUInt32BE(1)) {
      const told = parse(unread.subarray(5, 5 + unread.readUInt32BE(1)));
      unread = unread.subarray(5 + unread.readUInt32BE(1));
      if (stream.writableEnded) return;
      told(1).map(parse).forEach(hello);
      told(2).map(parse).forEach(each => stream.writableEnded || batch(each));
    }
  }).on('end', () => stream.writableEnded || stream.end());
}).listen(Number(address.split(':').at(-1)), address.slice(0, address.lastIndexOf(':')), function () {
  console.log(`listening at port ${this.address().port}`);
});
