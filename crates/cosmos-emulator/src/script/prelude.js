// What a script of a container sees: the collection, the request and the response. Operations wait in a queue; the
// server takes one after the other, does it, and hands its result to the callback.
(function (global) {
    "use strict";
    var LOG_MAX = 262144;
    var queue = [], log = "", setup = {}, functions = {};
    var evaluate = global.eval;

    function later(kind, fields, options, callback) {
        if (typeof options === "function") {
            callback = options;
            options = undefined;
        }
        fields.kind = kind;
        fields.options = options || {};
        queue.push({ text: JSON.stringify(fields), callback: callback });
        return true;
    }

    function message(body) {
        var values = {};
        return {
            getBody: function () { return body; },
            setBody: function (value) { body = value; },
            appendBody: function (value) { body = body === undefined ? value : body + value; },
            // The body is one of the values.
            getValue: function (name) { return name === "Body" ? body : values[name]; },
            setValue: function (name, value) {
                if (name === "Body") {
                    body = value;
                } else {
                    values[name] = value;
                }
            },
            appendValue: function (name, value) {
                var before = this.getValue(name);
                this.setValue(name, (before === undefined ? "" : before) + String(value));
            },
            getOperationType: function () { return setup.operation; },
        };
    }

    var request = message(undefined), response = message(undefined);
    var collection = {
        getSelfLink: function () { return setup.selfLink; },
        getAltLink: function () { return setup.altLink; },
        createDocument: function (link, body, options, callback) {
            return later("create", { body: body }, options, callback);
        },
        upsertDocument: function (link, body, options, callback) {
            return later("upsert", { body: body }, options, callback);
        },
        replaceDocument: function (link, body, options, callback) {
            return later("replace", { link: link, body: body }, options, callback);
        },
        deleteDocument: function (link, options, callback) {
            return later("delete", { link: link }, options, callback);
        },
        readDocument: function (link, options, callback) {
            return later("read", { link: link }, options, callback);
        },
        queryDocuments: function (link, query, options, callback) {
            return later("query", { query: query }, options, callback);
        },
        readDocuments: function (link, options, callback) {
            return later("query", { query: "SELECT * FROM c" }, options, callback);
        },
    };

    global.getContext = function () {
        return {
            getCollection: function () { return collection; },
            getRequest: function () { return request; },
            getResponse: function () { return response; },
            abort: function (error) { throw error; },
        };
    };
    global.__ = collection;
    global.ErrorCodes = {
        BadRequest: 400, Forbidden: 403, NotFound: 404, Conflict: 409, PreconditionFailed: 412,
        RequestEntityTooLarge: 413, RetryWith: 449, InternalServerError: 500,
    };

    function note() {
        var rest = Array.prototype.map.call(arguments, function (value) {
            return typeof value === "string" ? value : JSON.stringify(value);
        });
        if (typeof arguments[0] === "string") {
            var given = rest;
            rest = [given.shift().replace(/%([sdifjoO%])/g, function (sign, kind) {
                return kind === "%" ? "%" : given.length ? given.shift() : sign;
            })].concat(given);
        }
        var line = rest.join(" ");
        if (log.length + line.length <= LOG_MAX) {
            log += (log ? "\n" : "") + line;
        }
    }
    global.console = { log: note, info: note, warn: note, error: note };

    // One function, or several declarations of which the first is meant.
    function compile(source) {
        var compiled;
        try {
            compiled = evaluate("(" + source + "\n)");
        } catch (error) {
            var name = /function\s+([A-Za-z_$][\w$]*)/.exec(source);
            if (!(error instanceof SyntaxError) || !name) {
                throw error;
            }
            evaluate(source);
            compiled = global[name[1]];
        }
        if (typeof compiled !== "function") {
            throw new TypeError("The body of a script must be a function.");
        }
        return compiled;
    }

    global.hostStart = function (source, given, values) {
        setup = JSON.parse(given);
        request = message(setup.request);
        response = message(setup.response);
        compile(source).apply(global, JSON.parse(values));
        return "";
    };
    global.hostNext = function () {
        return queue.length ? queue[0].text : "";
    };
    global.hostDeliver = function (text) {
        var callback = queue.shift().callback, result = JSON.parse(text);
        if (!result.error) {
            if (callback) {
                callback(undefined, result.resource, result.options);
            }
            return "";
        }
        var error = new Error(result.error.message);
        error.number = result.error.number;
        error.body = result.error.message;
        if (!callback) {
            throw error;
        }
        callback(error, undefined, {});
        return "";
    };
    global.hostFinish = function () {
        return JSON.stringify({ response: response.getBody(), request: request.getBody(), log: log });
    };
    global.hostDefine = function (name, source) {
        functions[name] = compile(source);
        return "";
    };
    global.hostApply = function (name, values) {
        var result = functions[name].apply(global, JSON.parse(values).map(function (value) { return value[0]; }));
        var text = JSON.stringify(result);
        return text === undefined ? "" : text;
    };
})(globalThis);
