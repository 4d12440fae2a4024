// Written by Legation. Amp asks here before every call of a tool, and Legation answers: by a policy, a supervisor or a
// person. Without Legation behind it every call is refused.
import { openSync } from 'node:fs'
import { createConnection } from 'node:net'
import { basename, dirname } from 'node:path'

export const description = 'Puts every tool call before Legation'

const DOOR = process.env.LEGATION_AMP_DOOR ?? ''
const LONGEST = 100 // bytes of a socket's path that every kernel takes

function address(): string {
	if (Buffer.byteLength(DOOR) <= LONGEST) return DOOR
	return `/proc/self/fd/${openSync(dirname(DOOR), 'r')}/${basename(DOOR)}`
}

function ask(message: object): Promise<any> {
	return new Promise((resolve, reject) => {
		if (!DOOR) return reject(new Error('Amp was not started by Legation'))
		const socket = createConnection({ path: address() })
		let heard = ''
		socket.setEncoding('utf8')
		socket.on('connect', () => socket.write(JSON.stringify(message) + '\n'))
		socket.on('data', (data: string) => {
			heard += data
			if (!heard.endsWith('\n')) return
			resolve(JSON.parse(heard))
			socket.end()
		})
		socket.on('error', reject)
		socket.on('close', () => reject(new Error('Legation hung up')))
	})
}

export default function (amp: any) {
	amp.on('tool.call', async (event: any) => {
		try {
			const answer = await ask({ way: 'plugin', id: event.toolUseID, tool: event.tool, input: event.input })
			if (answer.allow !== true) return { action: 'reject-and-continue', message: String(answer.message) }
			return answer.input ? { action: 'modify', input: answer.input } : { action: 'allow' }
		} catch (error) {
			return { action: 'reject-and-continue', message: `Legation could not be asked: ${error}` }
		}
	})
	ask({ way: 'plugin', hello: true }).catch(() => {})
}
