-- wrk -s post.lua URL -- REQUESTS_FILE [CONTENT_TYPE]: the prepared requests, one after the other and again from the
-- front; prints one JSON line. A line of the file is an id, a tab and a body; the id travels in the header too.
local prepared, count, at = {}, 0, 0

function init(args)
  local kind = args[2] or "application/json"
  for line in io.lines(args[1]) do
    local id, body = line:match("^([^\t]*)\t(.*)$")
    count = count + 1
    prepared[count] = wrk.format("POST", nil, {["Content-Type"] = kind, ["X-Request-Id"] = id}, body)
  end
end

function request()
  at = at % count + 1
  return prepared[at]
end

function done(s, l, r)
  io.write(string.format(
    'RESULT {"requests":%d,"duration_us":%d,"p50":%d,"p90":%d,"p99":%d,"max":%d,"mean":%.1f,"err_connect":%d,"err_read":%d,"err_write":%d,"err_status":%d,"err_timeout":%d,"bytes":%d}\n',
    s.requests, s.duration, l:percentile(50), l:percentile(90), l:percentile(99), l.max, l.mean,
    s.errors.connect, s.errors.read, s.errors.write, s.errors.status, s.errors.timeout, s.bytes))
end
