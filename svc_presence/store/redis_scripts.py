"""The steps of presence that are atomic in Redis. What they mean is in the port; `redis.py` says what is kept.

Leases are one value, node → (epoch, begin, expires, draining, sessions, address), so that one MGET reads them with
entries. An entry is (recipient, device → (connect number, node, epoch)). Times are microseconds. Epochs and connect
numbers are text of nineteen digits, as Lua's numbers have 53 bits.

Must be harmless when they run twice: an answer may be lost.
"""

from __future__ import annotations

from typing import Final

from mesh.redis import Script

# A lease that seems to begin further in the future has run out: the clock was set back.
SET_BACK: Final = 1_000_000
# An ended lease is remembered for so many lease times: an old process that wakes up is still refused.
_REMEMBERED = 40
_ENTRY_MS = 24 * 3600 * 1_000

_COMMON = f"""
local function load(key, otherwise)
  local packed = redis.call('GET', key)
  return packed and cmsgpack.unpack(packed) or otherwise
end
local function is_empty(map) return next(map) == nil end
local function fresh(lease, now) return lease and lease[2] - {SET_BACK} <= now and now < lease[3] end
"""

# KEYS incarnation. ARGV a new one. Answers the one that stands.
ENTER: Final = Script("""
redis.call('SET', KEYS[1], ARGV[1], 'NX')
return redis.call('GET', KEYS[1])
""")

# KEYS leases, superseded, incarnation. ARGV node, epoch, now, expires, draining, sessions, address, how long what was
# superseded is repeated, a new incarnation. Answers: taken, incarnation, superseded.
RENEW: Final = Script(
    _COMMON
    + f"""
local node, epoch, now, expires = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local repeat_for, nothing = tonumber(ARGV[8]), cmsgpack.pack({{}})
redis.call('SET', KEYS[3], ARGV[9], 'NX')
local incarnation = redis.call('GET', KEYS[3])
local leases = load(KEYS[1], {{}})
local known = leases[node]
if known and (known[1] > epoch or (known[1] == epoch and not fresh(known, now))) then
  return {{0, incarnation, nothing}}
end
leases[node] = {{epoch, now, expires, tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]}}
for name, lease in pairs(leases) do
  if lease[3] + {_REMEMBERED} * repeat_for <= now then
    leases[name] = nil
    redis.call('HDEL', KEYS[2], name)
  end
end
redis.call('SET', KEYS[1], cmsgpack.pack(leases))
local packed = redis.call('HGET', KEYS[2], node)
if not packed then return {{1, incarnation, nothing}} end
local kept, told = {{}}, {{}}
for _, one in ipairs(cmsgpack.unpack(packed)) do
  if one[1] + repeat_for > now then
    kept[#kept + 1] = one
    told[#told + 1] = {{one[2], one[3], one[4]}}
  end
end
if #kept == 0 then redis.call('HDEL', KEYS[2], node)
else redis.call('HSET', KEYS[2], node, cmsgpack.pack(kept)) end
return {{1, incarnation, #told > 0 and cmsgpack.pack(told) or nothing}}
"""
)

# KEYS leases, superseded, incarnation, entries. ARGV node, epoch, now, (recipients, changes); a change is (place of its
# recipient, kind, device, connect number, node). Answers: taken, incarnation, superseded here, restored.
REPORT: Final = Script(
    _COMMON
    + f"""
local node, epoch, now = ARGV[1], ARGV[2], tonumber(ARGV[3])
local input, nothing = cmsgpack.unpack(ARGV[4]), cmsgpack.pack({{}})
local recipients, changes = input[1], input[2]
local incarnation = redis.call('GET', KEYS[3]) or ''
local leases = load(KEYS[1], {{}})
local function lives(name, of_epoch)
  local lease = leases[name]
  return lease and lease[1] == of_epoch and fresh(lease, now)
end
if not lives(node, epoch) then return {{0, incarnation, nothing, nothing}} end
local entries, changed, superseded, restored, elsewhere = {{}}, {{}}, {{}}, {{}}, {{}}
local function devices_of(place)
  if not entries[place] then
    local known = load(KEYS[3 + place], {{recipients[place], {{}}}})
    entries[place] = known[2]
  end
  return entries[place]
end
local function put(place, device, number, holder)
  local devices = devices_of(place)
  local known = devices[device]
  local is_new = true
  if known then
    local alive = lives(known[2], known[3])
    if known[1] == number and known[2] == holder then
      is_new = not alive or known[3] ~= epoch
    elseif alive and known[1] > number then
      superseded[#superseded + 1] = {{recipients[place], device, number}}
      return false
    elseif known[2] == holder then
      superseded[#superseded + 1] = {{recipients[place], device, known[1]}}
    elseif alive then
      local list = elsewhere[known[2]] or {{}}
      list[#list + 1] = {{now, recipients[place], device, known[1]}}
      elsewhere[known[2]] = list
    end
  end
  devices[device] = {{number, holder, epoch}}
  changed[place] = true
  return is_new
end
for _, change in ipairs(changes) do
  local place, kind, device, number, holder = change[1], change[2], change[3], change[4], change[5]
  if kind == 'left' then
    local known = devices_of(place)[device]
    if known and known[1] == number and known[2] == holder then
      entries[place][device] = nil
      changed[place] = true
    end
  elseif put(place, device, number, holder) and kind == 'asserted' then
    restored[#restored + 1] = {{recipients[place], device, number}}
  end
end
for place in pairs(changed) do
  local devices = entries[place]
  for device, known in pairs(devices) do
    local lease = leases[known[2]]
    if not (lease and lease[1] == known[3]) then devices[device] = nil end
  end
  if is_empty(devices) then redis.call('DEL', KEYS[3 + place])
  else redis.call('SET', KEYS[3 + place], cmsgpack.pack({{recipients[place], devices}}), 'PX', {_ENTRY_MS}) end
end
for name, list in pairs(elsewhere) do
  local packed = redis.call('HGET', KEYS[2], name)
  local known = packed and cmsgpack.unpack(packed) or {{}}
  for _, one in ipairs(list) do known[#known + 1] = one end
  redis.call('HSET', KEYS[2], name, cmsgpack.pack(known))
end
return {{1, incarnation, #superseded > 0 and cmsgpack.pack(superseded) or nothing,
  #restored > 0 and cmsgpack.pack(restored) or nothing}}
"""
)
